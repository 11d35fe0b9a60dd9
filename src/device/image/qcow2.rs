//! A qcow2 image. imago maps and allocates clusters, and the [layers](super::layer) read and write the files.
//!
//! Reads acquire a lock of the image as shared; a write, a discard or a flush acquires it exclusively. A freed cluster may be allocated
//! again only after the table that pointed to it has changed durably. So each operation that frees clusters ends with a flush.

use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use imago::qcow2::Qcow2 as Format;
use imago::raw::Raw;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, Mapping, ShallowMapping};
use parking_lot::RwLock;

use super::chain::{self, Link};
use super::driver::Driver;
use super::layer::Layer;
use crate::error::{Context, Errno, Error, ErrorKind, Result};
use crate::sys::image_storage::Stored;

type Access = FormatAccess<Stored<Layer>>;

/// An open image with its backing files.
pub(super) struct Qcow2 {
    access: RwLock<Access>,
    /// The file of the image itself.
    top: Arc<Layer>,
    size: u64,
    cluster: u64,
    write: bool,
    is_read_only: bool,
}

impl fmt::Debug for Qcow2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qcow2").field("top", &self.top).finish_non_exhaustive()
    }
}

impl Qcow2 {
    /// Opens an image. Also returns the notices for the user.
    pub(super) fn open(path: &Path, write: bool, locked: bool) -> Result<(Self, Vec<String>)> {
        let mut links = chain::open(path, write, locked)?;
        let mut notices = Vec::new();
        for Link { file, header } in &links {
            let states = header.iter().flat_map(|header| {
                let dirty = header.is_dirty().then_some("was not closed after it was written");
                dirty.into_iter().chain(header.is_corrupt().then_some("is marked as corrupt"))
            });
            let shown = file.path();
            notices.extend(states.map(|what| format!("{}: the image {what}", shown.display())));
        }
        let mut below: Option<Access> = None;
        while links.len() > 1 {
            let Some(Link { file, header }) = links.pop() else { break };
            let shown = file.path();
            let layer = Layer::new(file, header.as_ref());
            let is_qcow2 = header.is_some();
            let opened = opening(|| open_one(Arc::new(layer), is_qcow2, false, below.take()));
            below = Some(opened.at(|| shown.display())?);
        }
        let Some(Link { file, header: Some(header) }) = links.pop() else {
            return Err(Error::invalid("the chain of backing files contains no qcow2 image"));
        };
        let layer = if write {
            Layer::for_writing(file, &header).at(|| path.display())?
        } else {
            Layer::new(file, Some(&header))
        };
        let top = Arc::new(layer);
        let store = Arc::clone(&top);
        let access = opening(|| open_one(store, true, write, below.take()));
        let access = RwLock::new(access.at(|| path.display())?);
        let (size, cluster) = (header.size, header.cluster());
        let is_read_only = header.refuse_writing(path).is_some();
        Ok((Self { access, top, size, cluster, write, is_read_only }, notices))
    }

    /// Calls imago. If imago panics, the tables may be in any state, so all later writes fail.
    fn guarded<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<T> {
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(result) => result,
            Err(_) => {
                self.top.give_up();
                Err(panicked())
            }
        }
    }

    /// Changes the image. After a failed write of a table or a failed flush, the change is refused.
    fn change<T>(&self, run: impl FnOnce(&mut Access) -> Result<T>) -> Result<T> {
        let mut access = self.access.write();
        if self.top.is_broken() {
            let what = "a write to the image's tables or a flush has failed, so all later writes are refused";
            return Err(Error::io(Errno::EIO, what));
        }
        self.guarded(|| run(&mut access))
    }

    fn write_one(&self, access: &Access, data: &[u8], at: u64) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            let (at, left) = (at + done as u64, (data.len() - done) as u64);
            let (old, len) =
                access.get_shallow_mapping(at, left).map_err(|error| failed(&error))?;
            // If the old mapping has one of these kinds, a write frees its clusters.
            let frees = matches!(
                old,
                ShallowMapping::Raw { writable: false, .. } | ShallowMapping::Special { .. }
            );
            // A write in place changes no tables. Every other write changes tables.
            if !matches!(old, ShallowMapping::Raw { writable: true, .. }) {
                self.top.mark().map_err(header_failed)?;
            }
            let prepared = access.prepare_data_mapping(at, len.min(left), true);
            let prepared = prepared.map_err(|error| failed(&error))?;
            let count = usize::try_from(prepared.length()).unwrap_or(0).min(data.len() - done);
            if count == 0 {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!("no cluster was allocated for byte {at}"),
                ));
            }
            let written = self.top.write_data(&data[done..done + count], prepared.offset());
            written.map_err(|errno| Error::io(errno, "write to the image file"))?;
            access.commit_data_mapping(prepared).map_err(|error| failed(&error))?;
            done += count;
            if frees {
                flush(access)?;
            }
        }
        Ok(())
    }
}

/// Runs a function that opens an image. A panic of imago becomes an error.
fn opening<T>(open: impl FnOnce() -> io::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(open)) {
        Ok(opened) => opened.map_err(|error| failed(&error)),
        Err(_) => Err(panicked()),
    }
}

fn panicked() -> Error {
    Error::new(
        ErrorKind::Corrupt,
        "a read or write of the image panicked, so the qcow2 tables can be inconsistent",
    )
}

/// Opens one image of a chain. `below` is its backing file.
fn open_one(
    layer: Arc<Layer>,
    is_qcow2: bool,
    write: bool,
    below: Option<Access>,
) -> io::Result<Access> {
    let gate = DenyImplicitOpenGate::default();
    let store = Stored::new(layer);
    if !is_qcow2 {
        return Raw::builder(store).open(gate).map(FormatAccess::new);
    }
    let mut image = Format::<Stored<Layer>>::open_image(store, write)?;
    image.set_data_file(None);
    image.set_backing(below);
    Ok(FormatAccess::new(image))
}

/// Writes all tables and makes them durable.
fn flush(access: &Access) -> Result<()> {
    access.flush().and_then(|()| access.sync()).map_err(|error| failed(&error))
}

fn header_failed(errno: Errno) -> Error {
    Error::io(errno, "write to the image's header")
}

/// Converts an error of imago. An error of the file keeps its errno. Every other error is reported as an error of the image.
fn failed(error: &io::Error) -> Error {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(errno) => Error::io(Errno(errno), "the image file"),
        None if error.kind() == io::ErrorKind::Unsupported => Error::unsupported(text),
        None => Error::new(ErrorKind::Corrupt, text),
    }
}

impl Driver for Qcow2 {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn read(&self, buf: &mut [u8], at: u64) -> Result<()> {
        let access = self.access.read();
        self.guarded(|| access.read(buf, at).map_err(|error| failed(&error)))
    }

    fn data_from(&self, mut at: u64, end: u64) -> Result<Range<u64>> {
        let access = self.access.read();
        while at < end {
            let len = self.guarded(|| match access.get_mapping(at, end - at) {
                Ok((Mapping::Zero { .. }, len)) => Ok((true, len)),
                Ok((_, len)) => Ok((false, len)),
                Err(error) => Err(failed(&error)),
            });
            match len? {
                (true, len @ 1..) => at += len,
                (_, len) => return Ok(at..at.saturating_add(len.max(1)).min(end)),
            }
        }
        Ok(end..end)
    }

    fn write(&self, bufs: &[IoSlice<'_>], at: u64) -> Result<()> {
        self.change(|access| {
            self.top.begin().map_err(header_failed)?;
            match bufs {
                [one] => self.write_one(access, one, at),
                // The buffers are joined to one write. If each buffer were written separately, imago would copy the remaining bytes of a
                // cluster for each write.
                many => {
                    let all: Vec<u8> = many.iter().flat_map(|buf| buf.iter().copied()).collect();
                    self.write_one(access, &all, at)
                }
            }
        })
    }

    fn flush(&self) -> Result<()> {
        if !self.write {
            return Ok(());
        }
        let result = self.change(|access| {
            flush(access)?;
            self.top.unmark().map_err(header_failed)
        });
        if result.is_err() {
            self.top.give_up();
        }
        result
    }

    fn discard(&self, at: u64, len: u64) -> Result<()> {
        self.change(|access| {
            self.top.begin().and_then(|()| self.top.mark()).map_err(header_failed)?;
            access.discard_to_any(at, len).map_err(|error| failed(&error))?;
            flush(access)?;
            self.top.unmark().map_err(header_failed)
        })
    }

    /// Zeroes a range: frees the whole clusters in it, and writes zeros to the parts of clusters at its ends that contain other bytes.
    fn write_zeroes(&self, at: u64, len: u64) -> Result<()> {
        let end = at + len;
        let first = at.next_multiple_of(self.cluster).min(end);
        let last = (end / self.cluster * self.cluster).max(first);
        self.change(|access| {
            self.top.begin().and_then(|()| self.top.mark()).map_err(header_failed)?;
            access.discard_to_zero(first, last - first).map_err(|error| failed(&error))?;
            // The freed clusters may be allocated again only after this flush.
            flush(access)?;
            for part in [at..first, last..end].into_iter().filter(|part| !part.is_empty()) {
                let mut bytes = vec![0; (part.end - part.start) as usize];
                access.read(&mut bytes[..], part.start).map_err(|error| failed(&error))?;
                if bytes.iter().any(|byte| *byte != 0) {
                    bytes.fill(0);
                    self.write_one(access, &bytes, part.start)?;
                }
            }
            Ok(())
        })
    }
}

impl Drop for Qcow2 {
    fn drop(&mut self) {
        // A drop cannot return an error. If the tables cannot be written, the image stays marked as dirty. The next open for writing
        // reports the mark.
        let _ = self.flush();
    }
}
