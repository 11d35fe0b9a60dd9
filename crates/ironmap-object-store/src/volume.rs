//! The files of a volume as a tree of objects.

use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use ironmap::fs::{Credentials, FileType, Follow, Held, RenameFlags, Stat};
use ironmap::{DioFlags, Error, ErrorKind, File, FileOptions, Files, Queue, Volume};

use crate::tree::{Draft, Entries, Entry, Locked, Tree, absent, no_object, parent};

pub(crate) struct VolumeTree {
    volume: Volume,
    options: FileOptions,
    /// This lock excludes only other threads of this process, because a volume has only one owner.
    lock: Mutex<()>,
}

impl VolumeTree {
    pub(crate) fn new(volume: Volume, options: FileOptions) -> Self {
        Self { volume, options, lock: Mutex::default() }
    }

    /// Returns the open parent directory of a path, and the last name of the path.
    fn name_in<'a>(&self, path: &'a str) -> ironmap::Result<(Held, &'a [u8])> {
        let dir = parent(path);
        let name = path[dir.len()..].trim_start_matches('/');
        let (dir, _) = self.volume.fs().hold_path(dir.as_bytes(), Follow::All)?;
        Ok((dir, name.as_bytes()))
    }
}

fn absolute(path: &str) -> PathBuf {
    PathBuf::from(format!("/{path}"))
}

impl Tree for VolumeTree {
    fn name(&self) -> String {
        format!("{} volume", self.volume.fs().format())
    }

    fn open(&self, path: &str) -> io::Result<(File, Stat)> {
        let open = || -> ironmap::Result<_> {
            let (_held, inode) = self.volume.fs().hold_path(path.as_bytes(), Follow::All)?;
            let stat = inode.stat().clone();
            if stat.file_type != FileType::Regular {
                return Ok(None);
            }
            let file = self.volume.open_inode(inode, self.options)?;
            // The map of the blocks is read into memory. Without it, the reads of a batch would be carried out one after the other.
            file.map(0_u64, 1)?;
            Ok(Some((file, stat)))
        };
        open().map_err(|error| absent(error.into()))?.ok_or_else(|| no_object(path))
    }

    fn stat(&self, path: &str) -> io::Result<Stat> {
        self.volume.metadata(absolute(path)).map_err(|error| absent(error.into()))
    }

    fn list(&self, dir: &str) -> io::Result<Entries> {
        let entries = self.volume.read_dir(absolute(dir))?;
        Ok(Box::new(entries.map(|entry| {
            let entry = entry?;
            Ok(Entry { name: entry.name, file_type: entry.file_type })
        })))
    }

    fn draft(&self, path: &str) -> io::Result<Box<dyn Draft>> {
        let options = FileOptions::new().write(true).create_new(true);
        Ok(Box::new(VolumeDraft(self.volume.open_with(absolute(path), options)?)))
    }

    fn remove_drafts(&self, dir: &str) {
        if !self.volume.fs().is_writable() {
            return;
        }
        // No store uses the volume yet, so all drafts (files of new objects) in this directory were made by an earlier process.
        for entry in self.list(dir).into_iter().flatten().flatten() {
            if let Ok(name) = String::from_utf8(entry.name) {
                let _ = self.remove(&format!("{dir}/{name}"));
            }
        }
    }

    fn create_dirs(&self, dir: &str) -> io::Result<()> {
        Ok(self.volume.create_dir_all(absolute(dir))?)
    }

    fn rename(&self, from: &str, to: &str, replace: bool) -> io::Result<()> {
        let rename = || {
            let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
            let (from, to) = (self.name_in(from)?, self.name_in(to)?);
            let ((from, old), (to, new)) = (&from, &to);
            let (from, to) = ((from.number(), *old), (to.number(), *new));
            self.volume.fs().writable()?.rename(from, to, flags, &Credentials::default())
        };
        rename().map_err(|error: Error| error.context(format!("{from} to {to}")).into())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        Ok(self.volume.remove_file(absolute(path))?)
    }

    /// A commit of the journal makes all names durable.
    fn sync_dirs(&self, _dirs: &[&str]) -> io::Result<()> {
        Ok(self.volume.sync()?)
    }

    fn lock(&self) -> io::Result<Box<dyn Locked + '_>> {
        Ok(Box::new(self.lock.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

struct VolumeDraft(File);

impl Draft for VolumeDraft {
    fn write_at(&self, queue: &mut Queue, pos: u64, bytes: &[Bytes]) -> io::Result<()> {
        let slices: Vec<_> = bytes.iter().map(|bytes| IoSlice::new(bytes)).collect();
        let len: usize = bytes.iter().map(Bytes::len).sum();
        let count = self.0.write_vectored_at(queue, &slices, pos, DioFlags::WHOLE)?;
        if count == len {
            return Ok(());
        }
        let what = format!("only {count} of {len} bytes were written");
        Err(Error::new(ErrorKind::NoSpace, what).into())
    }

    fn sync(&self, queue: &mut Queue) -> io::Result<()> {
        Ok(self.0.sync(queue)?)
    }
}
