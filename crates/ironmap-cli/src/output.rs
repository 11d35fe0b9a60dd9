//! Output of several commands: progress bars, and the JSON that docs/cli/json.md describes.

use std::fmt;
use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressStyle};
use ironmap::fs::host::Refusal;
use ironmap::fs::{FileType, Stat, Timestamp, Xattr};
use ironmap::{HostReport, Location};
use ironmap_image::Failure;
use serde::{Serialize, Serializer};

use crate::show::{mode_string, rfc3339};
use crate::terminal::{Out, stdout};

/// A progress bar on standard error. The bar is hidden if standard error is not a terminal.
pub(crate) fn progress(what: &'static str, steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}");
    let bar = ProgressBar::new(steps).with_message(what);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Writes one indented JSON document.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut out = stdout();
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// Writes a JSON array element by element, with one element per line. The complete array need not fit in memory.
pub(crate) struct JsonArray {
    out: Out,
    empty: bool,
}

impl JsonArray {
    pub(crate) fn new() -> Self {
        Self { out: stdout(), empty: true }
    }

    pub(crate) fn push(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.out.write_all(if self.empty { b"[\n" } else { b",\n" })?;
        self.empty = false;
        Ok(serde_json::to_writer(&mut self.out, value).map_err(io::Error::from)?)
    }

    pub(crate) fn end(mut self) -> Result<(), Failure> {
        self.out.write_all(if self.empty { b"[]\n" } else { b"\n]\n" })?;
        Ok(self.out.flush()?)
    }
}

/// The encoding of the byte strings in a JSON object. If all strings are valid UTF-8, they are written unchanged. Otherwise, all strings
/// are percent-escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Utf8,
    Percent,
}

impl Encoding {
    /// The encoding for an object with these strings.
    pub(crate) fn of<'a>(strings: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let utf8 = strings.into_iter().all(|bytes| std::str::from_utf8(bytes).is_ok());
        if utf8 { Self::Utf8 } else { Self::Percent }
    }

    /// Converts bytes to text. With percent-escapes, invalid bytes and `%` itself become `%XX`.
    pub(crate) fn text(self, bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            match self {
                Self::Utf8 => text.push_str(chunk.valid()),
                Self::Percent => text.push_str(&chunk.valid().replace('%', "%25")),
            }
            text.extend(chunk.invalid().iter().map(|byte| format!("%{byte:02X}")));
        }
        text
    }

    /// Whether strings are written unchanged. `skip_serializing_if` calls this function.
    pub(crate) fn is_utf8(&self) -> bool {
        *self == Self::Utf8
    }
}

impl Serialize for Encoding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Utf8 => "utf-8",
            Self::Percent => "percent",
        })
    }
}

/// How a file of a mounted file system is read, and the reason.
#[derive(Serialize)]
pub(crate) struct Served {
    served_by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<RefusalRecord>,
}

#[derive(Serialize)]
struct RefusalRecord {
    name: &'static str,
    reason: String,
}

impl Served {
    pub(crate) fn of(report: &HostReport) -> Self {
        let record =
            |refusal: &Refusal| RefusalRecord { name: refusal.name(), reason: refusal.to_string() };
        let served_by = if report.is_raw() { "raw" } else { "kernel" };
        Self { served_by, refusal: report.refusal.as_ref().map(record) }
    }
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.refusal {
            None => f.write_str("raw reads of the device, while ironmap holds a lease"),
            Some(refusal) => write!(f, "the kernel: {}", refusal.reason),
        }
    }
}

/// A file in the output of `ls --json` and `stat --json`.
#[derive(Serialize)]
pub(crate) struct FileRecord {
    #[serde(skip_serializing_if = "Option::is_none")]
    volume: Option<String>,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Encoding::is_utf8")]
    encoding: Encoding,
    inode: u64,
    r#type: &'static str,
    mode: u32,
    permissions: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    blocks: u64,
    block_size: u32,
    accessed: String,
    modified: String,
    changed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<DeviceRecord>,
    flags: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    xattrs: Option<Vec<XattrRecord>>,
    #[serde(flatten)]
    served: Option<Served>,
}

#[derive(Serialize)]
struct DeviceRecord {
    major: u32,
    minor: u32,
}

#[derive(Serialize)]
struct XattrRecord {
    name: String,
    value: String,
    #[serde(skip_serializing_if = "Encoding::is_utf8")]
    encoding: Encoding,
}

impl FileRecord {
    /// Returns a record with the attributes of `stat`, and with extended attributes if the caller passes them.
    pub(crate) fn new(
        path: &[u8],
        stat: &Stat,
        target: Option<&[u8]>,
        xattrs: Option<&[Xattr]>,
    ) -> Self {
        let encoding = Encoding::of([path].into_iter().chain(target));
        let time = |at: Timestamp| rfc3339(at);
        Self {
            volume: None,
            path: encoding.text(path),
            target: target.map(|target| encoding.text(target)),
            encoding,
            inode: stat.inode.0,
            r#type: json_type(stat.file_type),
            mode: stat.mode,
            permissions: mode_string(stat),
            links: stat.links,
            uid: stat.uid,
            gid: stat.gid,
            size: stat.size,
            blocks: stat.blocks,
            block_size: stat.block_size,
            accessed: time(stat.accessed),
            modified: time(stat.modified),
            changed: time(stat.changed),
            created: stat.created.map(time),
            device: stat.device.map(|(major, minor)| DeviceRecord { major, minor }),
            flags: stat.flags,
            generation: Some(stat.generation),
            project: stat.project,
            xattrs: xattrs.map(|xattrs| xattrs.iter().map(XattrRecord::new).collect()),
            served: None,
        }
    }

    /// Adds the volume that contains the file.
    pub(crate) fn of_volume(self, volume: &Location) -> Self {
        Self { volume: Some(volume.to_string()), ..self }
    }

    /// Adapts the record to a file of a mounted file system. Removes the generation, because the kernel does not report it.
    pub(crate) fn of_host(self, served: Option<Served>) -> Self {
        Self { generation: None, served, ..self }
    }
}

impl XattrRecord {
    fn new(xattr: &Xattr) -> Self {
        let encoding = Encoding::of([&*xattr.name, &*xattr.value]);
        let (name, value) = (encoding.text(&xattr.name), encoding.text(&xattr.value));
        Self { name, value, encoding }
    }
}

fn json_type(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "regular",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::CharDevice => "char_device",
        FileType::BlockDevice => "block_device",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_escapes_lose_nothing() {
        let all: Vec<u8> = (0..=255).chain(*b"100%41 \xC3\xA9").collect();
        let encoding = Encoding::of([&*all]);
        assert_eq!(encoding, Encoding::Percent);
        let (text, mut back) = (encoding.text(&all), Vec::new());
        let mut rest = text.as_bytes();
        while let Some((first, tail)) = rest.split_first() {
            rest = tail;
            if *first == b'%' {
                let hex = std::str::from_utf8(&tail[..2]).unwrap();
                back.push(u8::from_str_radix(hex, 16).unwrap());
                rest = &tail[2..];
            } else {
                back.push(*first);
            }
        }
        assert_eq!(back, all);
    }

    #[test]
    fn utf8_stays_as_it_is() {
        let name = "100% Größe".as_bytes();
        assert_eq!(Encoding::of([name]).text(name), "100% Größe");
    }
}
