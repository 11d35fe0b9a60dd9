//! A qcow2 image. All features except encryption can be read; images of version 3 can be written.
//!
//! | File | Subject |
//! |---|---|
//! | `header`, `chain`, `snapshots` | the files of an image and the contents of their headers |
//! | `entry`, `tables`, `packed` | the content of a range of the disk |
//! | `metadata`, `refcounts` | the clusters of the file, and their allocation |
//! | `bitmaps` | the persistent bitmaps of an image |
//! | `write` | the changes of an image, and the order of their writes |
//! | `create` | new images |
//!
//! Source: `docs/interop/qcow2.txt` of QEMU.

mod bitmaps;
mod chain;
mod create;
mod entry;
mod header;
mod metadata;
mod packed;
mod past_end;
mod refcounts;
mod snapshots;
mod tables;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;
use std::io::IoSlice;
use std::ops::Range;
use std::path::Path;

use parking_lot::{Mutex, RwLock};

pub(super) use self::chain::open as open_chain;
pub use self::create::create;
use self::entry::{Content, Entry};
use self::header::Header;
pub(super) use self::snapshots::names as snapshot_names;
use self::write::Writer;
use super::driver::Driver;
use super::file::ImageFile;
use crate::error::{Context, Error, Place, Result};
use crate::units::FsBlock;

/// The maximum number of bytes of the disk that one search for data examines: a million clusters of 64 KiB.
const STRETCH: u64 = 1 << 36;

/// An open image with its backing files.
pub(super) struct Qcow2 {
    file: ImageFile,
    /// The separate file that contains the data. `None` if the image itself contains them.
    data: Option<ImageFile>,
    header: Header,
    state: RwLock<State>,
    cache: tables::Cache,
    /// The most recently read compressed cluster: its position in the file, and its decompressed content.
    last: Mutex<Option<(u64, Vec<u8>)>>,
    below: Option<Below>,
    is_read_only: bool,
    /// Whether a write of whole clusters compresses the clusters that are not yet in the file.
    compresses: bool,
    /// Whether three conditions hold: the image is open only for reading, the data are in the image itself, and the clusters have no
    /// subclusters.
    is_plain: bool,
    /// If the file ends within a unit of this many bytes, the rest of the unit reads as zeros. The unit is normally a cluster, because QEMU
    /// need not write the end of the last cluster. If the file is truncated, its last cluster is incomplete, and no zeros are added.
    granule: u64,
}

/// The tables of an image: the L1 table, and the changed tables.
struct State {
    l1: Vec<u64>,
    /// The changes of an image that is open for writing.
    writer: Option<Writer>,
}

/// A backing file.
enum Below {
    Raw(Box<ImageFile>),
    Image(Box<Qcow2>),
}

impl fmt::Debug for Qcow2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qcow2").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Qcow2 {
    /// Opens an image, or its internal snapshot with this name. Also returns the notices for the user.
    pub(super) fn open(
        path: &Path,
        snapshot: Option<&str>,
        write: bool,
        locked: bool,
    ) -> Result<(Self, Vec<String>)> {
        let (mut notices, mut below) = (Vec::new(), None);
        let mut links = chain::open(path, write, locked)?;
        if let (Some(name), Some(chain::Link { file, header: Some(header), .. })) =
            (snapshot, links.first_mut())
        {
            snapshots::select(file, header, name).at(|| path.display())?;
        }
        let mut top = None;
        for (depth, link) in links.into_iter().enumerate().rev() {
            let shown = link.file.path();
            let Some(header) = link.header else {
                below = Some(Below::Raw(Box::new(link.file)));
                continue;
            };
            let is_truncated =
                past_end::has_clusters(&link.file, &header).at(|| shown.display())?;
            let states = [
                (header.is_dirty(), "was not closed after it was written"),
                (header.is_corrupt(), "is marked as corrupt"),
                (
                    is_truncated,
                    "is truncated: clusters past the end of the file are in use, and they cannot be read",
                ),
            ];
            let states = states.into_iter().filter(|(is_so, _)| *is_so).rev();
            notices
                .extend(states.map(|(_, what)| format!("{}: the image {what}", shown.display())));
            let write = write && depth == 0;
            let image = Self::of(link.file, link.data, header, below.take(), write);
            let mut image = image.at(|| shown.display())?;
            if is_truncated {
                image.granule = 1;
            }
            if depth == 0 {
                top = Some(image);
            } else {
                below = Some(Below::Image(Box::new(image)));
            }
        }
        notices.reverse();
        let mut top =
            top.ok_or_else(|| Error::invalid("the chain of backing files has no qcow2 image"))?;
        top.is_read_only |= snapshot.is_some();
        Ok((top, notices))
    }

    /// Sets whether later writes of whole clusters compress the clusters that are not yet in the file.
    pub(super) fn compress(&mut self, compresses: bool) {
        self.compresses = compresses;
    }

    fn of(
        file: ImageFile,
        data: Option<ImageFile>,
        header: Header,
        below: Option<Below>,
        write: bool,
    ) -> Result<Self> {
        let l1 = metadata::table(&file, header.l1_at, header.l1_entries)?;
        let refused = header.refuse_writing(&file.path());
        let writer = match (write, &refused) {
            (false, _) => None,
            (true, Some(what)) => return Err(Error::unsupported(what.clone())),
            (true, None) => Some(Writer::open(&file, &header, &l1)?),
        };
        Ok(Self {
            cache: tables::Cache::new(&header, write),
            state: RwLock::new(State { l1, writer }),
            last: Mutex::new(None),
            is_read_only: refused.is_some(),
            compresses: false,
            granule: header.cluster(),
            is_plain: !write && data.is_none() && !header.has_subclusters(),
            file,
            data,
            header,
            below,
        })
    }

    /// Returns the L2 entry of a cluster of the disk.
    fn entry(&self, state: &State, cluster: u64) -> Result<Entry> {
        let (mapped, words) = (self.header.mapped(), self.header.words());
        let (index, within) = (cluster / mapped, (cluster % mapped) as usize);
        let changed = state.writer.as_ref().and_then(|writer| writer.changed(index));
        if let Some(table) = changed {
            return Ok(tables::entry(table, within, words));
        }
        if let Some(entry) = self.cache.entry(index, within, words) {
            return Ok(entry);
        }
        let table = self.load(state, index)?;
        Ok(table.map_or(Entry::default(), |table| tables::entry(&table, within, words)))
    }

    /// Loads the L2 table number `index` as it is stored in the file. Returns `None` if the image has no such table.
    fn load(&self, state: &State, index: u64) -> Result<Option<std::sync::Arc<[u64]>>> {
        if let Some(table) = self.cache.table(index) {
            return Ok(Some(table));
        }
        let l1 = state.l1.get(index as usize).copied().unwrap_or(0);
        if l1 & entry::OFFSET == 0 {
            return Ok(None);
        }
        let table = tables::read(&self.file, &self.header, index, l1, self.granule)?;
        self.cache.put(index, std::sync::Arc::clone(&table));
        Ok(Some(table))
    }

    /// Returns the position in the file of a range within one cluster. Makes only one look-up, in the cache of L2 tables, and returns
    /// `None` if this is not sufficient.
    #[inline(always)]
    fn in_one_cluster(&self, at: u64, len: u64) -> Option<u64> {
        let (bits, cluster) = (self.header.cluster_bits, self.header.cluster());
        let skip = at & (cluster - 1);
        if !self.is_plain || len > cluster - skip {
            return None;
        }
        // A table is one cluster of 8-byte entries.
        let (number, table_bits) = (at >> bits, bits - 3);
        let (index, within) = (number >> table_bits, number & ((1 << table_bits) - 1));
        let Entry { word, .. } = self.cache.entry(index, within as usize, 1)?;
        Some(entry::plain(word, cluster)? + skip)
    }

    /// Returns the content at a position, and the length of the extent that begins there, at most `most`.
    fn content(&self, state: &State, at: u64, most: u64) -> Result<(Content, u64)> {
        let (first, mut len) = self.content_of_one(state, at)?;
        while len < most && !matches!(first, Content::Packed { .. }) {
            let (next, more) = self.content_of_one(state, at + len)?;
            if next != first.after(len) {
                break;
            }
            len += more;
        }
        Ok((first, len.min(most)))
    }

    /// Does the same as [`content`](Self::content), but the extent ends at the end of the cluster, or at the end of a missing L2 table.
    fn content_of_one(&self, state: &State, at: u64) -> Result<(Content, u64)> {
        let (cluster, skip) = (at >> self.header.cluster_bits, at & (self.header.cluster() - 1));
        // If the L2 table is missing, all clusters that it would map have the content of the backing file.
        let (index, mapped) = (cluster / self.header.mapped(), self.header.mapped());
        let is_absent = state.l1.get(index as usize).is_none_or(|l1| l1 & entry::OFFSET == 0);
        if is_absent {
            let end = (index + 1).saturating_mul(mapped).saturating_mul(self.header.cluster());
            return Ok((Content::Below, end - at));
        }
        let content = self.entry(state, cluster)?.content(&self.header, skip);
        content.map_err(|what| Place::new("qcow2 L2 entry").block(FsBlock(cluster)).corrupt(what))
    }

    /// Reads a range of the disk.
    fn read_in(&self, state: &State, mut buf: &mut [u8], mut at: u64) -> Result<()> {
        while !buf.is_empty() {
            let (content, len) = self.content(state, at, buf.len() as u64)?;
            let (part, rest) = std::mem::take(&mut buf).split_at_mut(len as usize);
            match content {
                Content::At(from) => match &self.data {
                    Some(data) => data.read_data(part, from, self.granule)?,
                    None => self.file.read_data(part, from, self.granule)?,
                },
                Content::Zeros => part.fill(0),
                Content::Below => self.read_below(part, at)?,
                Content::Packed { at, len, skip } => self.read_packed(part, at, len, skip)?,
            }
            buf = rest;
            at += len;
        }
        Ok(())
    }

    /// Reads a range of the backing file. Bytes past the end of the backing file are zeros.
    fn read_below(&self, buf: &mut [u8], at: u64) -> Result<()> {
        match &self.below {
            None => buf.fill(0),
            Some(Below::Raw(file)) => read_within(file, buf, at)?,
            Some(Below::Image(image)) => {
                let rest = usize::try_from(image.header.size.saturating_sub(at));
                let (part, past) = buf.split_at_mut(rest.unwrap_or(usize::MAX).min(buf.len()));
                image.read_in(&image.state.read(), part, at)?;
                past.fill(0);
            }
        }
        Ok(())
    }

    /// Reads a part of a compressed cluster.
    fn read_packed(&self, buf: &mut [u8], at: u64, len: u64, skip: u64) -> Result<()> {
        let mut last = self.last.lock();
        if last.as_ref().is_none_or(|(known, _)| *known != at) {
            let place = || Place::new("qcow2 compressed cluster");
            if at >= self.file.len() {
                return Err(place().corrupt(format!("byte {at} is past the end of the file")));
            }
            let mut packed = vec![0; len as usize];
            self.file.read_at(&mut packed, at)?;
            let mut cluster = vec![0; self.header.cluster() as usize];
            packed::unpack(&packed, &mut cluster, self.header.is_zstd).map_err(|what| {
                place().corrupt(format!("the cluster at byte {at} cannot be decompressed: {what}"))
            })?;
            *last = Some((at, cluster));
        }
        if let Some((_, cluster)) = &*last {
            buf.copy_from_slice(&cluster[skip as usize..][..buf.len()]);
        }
        Ok(())
    }

    /// Returns the first range between `at` and `end` of the backing file that may contain nonzero bytes, as in [`Driver::data_from`].
    fn data_below(&self, at: u64, end: u64) -> Result<Range<u64>> {
        match &self.below {
            Some(Below::Raw(file)) if at < file.len() => Ok(at..end.min(file.len())),
            Some(Below::Image(image)) if at < image.header.size => {
                let within = end.min(image.header.size);
                let found = image.data_from(at, within)?;
                Ok(if found.is_empty() { end..end } else { found })
            }
            _ => Ok(end..end),
        }
    }
}

/// Reads from a backing file. Bytes past the length that the file had when it was opened are zeros. This code does not read them, because a
/// read from a file in /proc may block there.
fn read_within(file: &ImageFile, buf: &mut [u8], at: u64) -> Result<()> {
    let rest = usize::try_from(file.len().saturating_sub(at)).unwrap_or(usize::MAX);
    let (part, past) = buf.split_at_mut(rest.min(buf.len()));
    past.fill(0);
    if part.is_empty() { Ok(()) } else { file.read_at(part, at) }
}

impl Driver for Qcow2 {
    fn size(&self) -> u64 {
        self.header.size
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn read(&self, buf: &mut [u8], at: u64) -> Result<()> {
        match self.in_one_cluster(at, buf.len() as u64) {
            Some(from) => self.file.read_data(buf, from, self.granule),
            None => self.read_in(&self.state.read(), buf, at),
        }
    }

    fn data_from(&self, mut at: u64, end: u64) -> Result<Range<u64>> {
        let state = self.state.read();
        let most = at.saturating_add(STRETCH).min(end);
        while at < end {
            if at >= most {
                // An empty range before `end` means that the bytes after it are unknown. The caller can stop here, or call again.
                return Ok(at..at);
            }
            let (content, len) = self.content(&state, at, most - at)?;
            match content {
                Content::Zeros => {}
                Content::Below => {
                    let found = self.data_below(at, at + len)?;
                    if !found.is_empty() {
                        return Ok(found);
                    }
                }
                _ => return Ok(at..at + len),
            }
            at += len;
        }
        Ok(end..end)
    }

    fn write(&self, bufs: &[IoSlice<'_>], at: u64) -> Result<()> {
        match bufs {
            [one] => self.write_one(one, at),
            // This code joins the buffers into one write, because a write to a part of a cluster may copy the rest of the cluster.
            many => {
                let all: Vec<u8> = many.iter().flat_map(|buf| buf.iter().copied()).collect();
                self.write_one(&all, at)
            }
        }
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.state.write();
        let State { l1, writer } = &mut *state;
        writer.as_mut().map_or(Ok(()), |writer| self.commit(l1, writer))
    }

    /// Frees the clusters that are entirely within the range.
    fn discard(&self, at: u64, len: u64) -> Result<()> {
        let cluster = self.header.cluster();
        let (first, last) = (at.div_ceil(cluster), (at + len) / cluster);
        self.change(|image, state| image.free(state, first..last))
    }

    /// Zeroes a range. Whole clusters in the range are freed. If a partial cluster at either end of the range contains nonzero bytes, zeros
    /// are written to it.
    fn write_zeroes(&self, at: u64, len: u64) -> Result<()> {
        let (cluster, end) = (self.header.cluster(), at + len);
        let first = at.next_multiple_of(cluster).min(end);
        let last = (end / cluster * cluster).max(first);
        self.change(|image, state| {
            image.free(state, first.div_ceil(cluster)..last / cluster)?;
            for part in [at..first, last..end].into_iter().filter(|part| !part.is_empty()) {
                let mut bytes = vec![0; (part.end - part.start) as usize];
                image.read_in(state, &mut bytes, part.start)?;
                if bytes.iter().any(|byte| *byte != 0) {
                    bytes.fill(0);
                    image.write_in(state, &bytes, part.start)?;
                }
            }
            Ok(())
        })
    }
}

impl Drop for Qcow2 {
    fn drop(&mut self) {
        // A drop cannot return an error. If the flush fails, only data that no flush has confirmed are lost, although some clusters may be
        // leaked until `qemu-img check` finds them.
        let _ = self.flush();
    }
}
