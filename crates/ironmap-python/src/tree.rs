//! Implements the methods of a store in Python. All stores can be opened and closed. A volume also has methods for names, attributes and a
//! check.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use ironmap::fs::{FileType, Follow, SetAttributes, SetXattr, Stat, Timestamp};
use ironmap::{Engine, Error, ErrorKind, HostOptions, VolumeOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::decoded;
use crate::store::{OpenStore, Store};

/// The attributes of a file: first the fields of `os.stat_result` in their order, with times in nanoseconds, and then the number of blocks,
/// the block size and the device number.
type StatFields = (u32, u64, u32, u32, u32, u64, i128, i128, i128, u64, u32, u64);

/// A finding of a check: severity, kind, place, text, inode, block.
type FindingFields = (String, &'static str, String, String, Option<u64>, Option<u64>);

/// The name, the inode number and the type of an entry of a directory.
type Entry = (Py<PyAny>, u64, u32);

fn as_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

fn follow(follow: bool) -> Follow {
    if follow { Follow::All } else { Follow::NotLast }
}

fn nanoseconds(time: Timestamp) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
}

fn fields(stat: &Stat) -> StatFields {
    // The device number has the encoding of `makedev` in the C library.
    let device = stat.device.map_or(0, |(major, minor)| {
        let (major, minor) = (u64::from(major), u64::from(minor));
        (major & 0xfff) << 8 | (major & !0xfff) << 32 | minor & 0xff | (minor & !0xff) << 12
    });
    let times = [stat.accessed, stat.modified, stat.changed].map(nanoseconds);
    (
        stat.mode,
        stat.inode.0,
        stat.links,
        stat.uid,
        stat.gid,
        stat.size,
        times[0],
        times[1],
        times[2],
        stat.blocks,
        stat.block_size,
        device,
    )
}

impl OpenStore {
    fn set_permissions(&self, path: &[u8], permissions: u32) -> ironmap::Result<()> {
        let fs = self.volume()?.fs();
        let (held, _) = fs.hold_path(path, Follow::All)?;
        let change = SetAttributes::new().permissions(permissions);
        fs.writable()?.set_attributes(held.number(), &change)
    }
}

fn parse(engine: &str) -> PyResult<Engine> {
    engine.parse().map_err(|error: Error| PyValueError::new_err(error.to_string()))
}

#[pymethods]
impl Store {
    /// Opens the volume at a location. Changes are committed after `commit` seconds.
    #[staticmethod]
    fn volume_at(
        py: Python<'_>,
        location: Vec<u8>,
        write: bool,
        engine: &str,
        commit: f64,
    ) -> PyResult<Self> {
        let commit = Duration::try_from_secs_f64(commit)
            .map_err(|error| PyValueError::new_err(format!("commit: {error}")))?;
        let options = VolumeOptions::new().write(write).commit(commit).engine(parse(engine)?);
        Self::open_volume(py, location, options)
    }

    /// Opens the files of the host.
    #[staticmethod]
    fn host(py: Python<'_>, engine: &str) -> PyResult<Self> {
        Self::open_host(py, HostOptions::new().engine(parse(engine)?))
    }

    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    /// Closes all files, and the store. Waits for the calls of other threads.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.close_all(py)
    }

    /// The name of the format.
    fn format(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.call(py, b"", |store| Ok(store.fs()?.format()))
    }

    /// Returns the settings that could not be applied, and the faults of the device that were ignored.
    fn notices(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.call(py, b"", |store| {
            let volume = store.volume()?;
            Ok(volume.notices().iter().chain(volume.faults()).cloned().collect())
        })
    }

    /// Returns the name, the inode number and the type of each entry in a directory, and the error after which no more entries can be read.
    /// The type is the `S_IFMT` bits, or 0 if it is unknown.
    fn list(&self, py: Python<'_>, path: &[u8]) -> PyResult<(Vec<Entry>, Option<Py<PyAny>>)> {
        let (entries, error) = self.call(py, path, |store| {
            let (mut found, mut error) = (Vec::new(), None);
            for entry in store.volume()?.read_dir(as_path(path))? {
                match entry {
                    Ok(entry) => found.push(entry),
                    // Readable entries may follow an entry that cannot be read. The last error is reported.
                    Err(failed) => error = Some(failed),
                }
            }
            Ok((found, error))
        })?;
        let entries = entries.into_iter().map(|entry| {
            let kind = entry.file_type.map_or(0, FileType::to_mode);
            Ok((decoded(py, &entry.name)?, entry.inode.0, kind))
        });
        let error =
            error.map(|error| self.judge(error.into()).at(py, path).into_value(py).into_any());
        Ok((entries.collect::<PyResult<_>>()?, error))
    }

    fn stat(&self, py: Python<'_>, path: &[u8], follow_links: bool) -> PyResult<StatFields> {
        self.call(py, path, |store| {
            Ok(fields(store.volume()?.fs().resolve(path, follow(follow_links))?.stat()))
        })
    }

    fn readlink(&self, py: Python<'_>, path: &[u8]) -> PyResult<Py<PyAny>> {
        let target = self.call(py, path, |store| store.volume()?.read_link(as_path(path)))?;
        decoded(py, target.as_os_str().as_bytes())
    }

    fn mkdir(&self, py: Python<'_>, path: &[u8], permissions: u32) -> PyResult<()> {
        self.call(py, path, |store| {
            store.volume()?.create_dir(as_path(path))?;
            if permissions == 0o755 { Ok(()) } else { store.set_permissions(path, permissions) }
        })
    }

    fn chmod(&self, py: Python<'_>, path: &[u8], permissions: u32) -> PyResult<()> {
        self.call(py, path, |store| store.set_permissions(path, permissions))
    }

    fn rename(&self, py: Python<'_>, from: &[u8], to: &[u8]) -> PyResult<()> {
        self.call(py, from, |store| store.volume()?.rename(as_path(from), as_path(to)))
    }

    fn unlink(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.call(py, path, |store| store.volume()?.remove_file(as_path(path)))
    }

    fn rmdir(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.call(py, path, |store| store.volume()?.remove_dir(as_path(path)))
    }

    fn symlink(&self, py: Python<'_>, target: &[u8], path: &[u8]) -> PyResult<()> {
        self.call(py, path, |store| store.volume()?.symlink(as_path(target), as_path(path)))
    }

    fn link(&self, py: Python<'_>, original: &[u8], path: &[u8]) -> PyResult<()> {
        self.call(py, path, |store| store.volume()?.hard_link(as_path(original), as_path(path)))
    }

    fn listxattr(
        &self,
        py: Python<'_>,
        path: &[u8],
        follow_links: bool,
    ) -> PyResult<Vec<Py<PyAny>>> {
        let xattrs = self.call(py, path, |store| {
            let (_held, inode) = store.volume()?.fs().hold_path(path, follow(follow_links))?;
            inode.xattrs()
        })?;
        xattrs.iter().map(|xattr| decoded(py, &xattr.name)).collect()
    }

    fn getxattr(
        &self,
        py: Python<'_>,
        path: &[u8],
        name: &[u8],
        follow_links: bool,
    ) -> PyResult<std::borrow::Cow<'static, [u8]>> {
        let value = self.call(py, path, |store| {
            let (_held, inode) = store.volume()?.fs().hold_path(path, follow(follow_links))?;
            let missing = || Error::new(ErrorKind::NoData, "the attribute does not exist");
            inode.xattr(name)?.ok_or_else(missing)
        })?;
        Ok(value.into())
    }

    /// `how` is 0, or one of `os.XATTR_CREATE` and `os.XATTR_REPLACE`.
    #[allow(clippy::too_many_arguments, reason = "the arguments of os.setxattr")]
    fn setxattr(
        &self,
        py: Python<'_>,
        path: &[u8],
        name: &[u8],
        value: &[u8],
        how: u32,
        follow_links: bool,
    ) -> PyResult<()> {
        let how = match how {
            0 => SetXattr::Any,
            1 => SetXattr::Create,
            2 => SetXattr::Replace,
            _ => return Err(PyValueError::new_err("flags: 0, XATTR_CREATE or XATTR_REPLACE")),
        };
        self.call(py, path, |store| {
            let fs = store.volume()?.fs();
            let (held, _) = fs.hold_path(path, follow(follow_links))?;
            fs.writable()?.setxattr(held.number(), name, value, how)
        })
    }

    fn removexattr(
        &self,
        py: Python<'_>,
        path: &[u8],
        name: &[u8],
        follow_links: bool,
    ) -> PyResult<()> {
        self.call(py, path, |store| {
            let fs = store.volume()?.fs();
            let (held, _) = fs.hold_path(path, follow(follow_links))?;
            fs.writable()?.removexattr(held.number(), name)
        })
    }

    /// Checks all metadata.
    fn check(&self, py: Python<'_>) -> PyResult<Vec<FindingFields>> {
        let report = self.call(py, b"", |store| store.fs()?.check(&mut |_| {}))?;
        let findings = report.findings.into_iter().map(|finding| {
            let place = finding.site.place;
            (
                finding.severity.to_string(),
                finding.what.name(),
                finding.site.to_string(),
                finding.what.to_string(),
                place.inode.map(|inode| inode.0),
                place.block.map(|block| block.0),
            )
        });
        Ok(findings.collect())
    }

    /// Makes all changes durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, b"", |store| store.volume()?.sync())
    }
}
