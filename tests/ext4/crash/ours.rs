//! Workloads run by ironmap on a recorded device.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use ironmap::Volume;
use ironmap::device::{Log, Ram, Record};
use ironmap::fs::{
    Clock, Credentials, Fallocate, FileSystem, Follow, Held, InodeFlags, NewFile, RenameFlags,
    SetAttributes, SetXattr, Timestamp,
};
use ironmap::units::{FilePos, InodeNo};

use crate::common::beneath::tail;
use crate::crash::history::History;
use crate::crash::op::{ACL, Op, Renaming, Set, Space, Special, acl};

pub(crate) const WHO: Credentials = Credentials::new(0, 0, 0o022);

/// The clock is constant, so each run of a workload writes the same time stamps.
pub(crate) const CLOCK: Clock = Clock::Fixed(Timestamp { seconds: 1_000_000_000, nanoseconds: 0 });

/// Records the requests of ironmap to a device with the content `base`. ironmap opens the volume, runs the operations, and closes the
/// volume.
pub(crate) fn record(base: &Ram, history: &History, ops: Range<usize>) -> Log {
    let record = Arc::new(Record::new(Arc::new(base.snapshot())));
    record.mark(ops.start as u64);
    let volume = Volume::writable_on(tail::open(record.clone()), CLOCK).expect("open the volume");
    let returned = |number| record.mark(number as u64);
    run(&volume, history, ops, returned).expect("a possible operation");
    volume.close().expect("close the volume");
    drop(volume);
    record.log()
}

/// Records the requests of several threads. Each thread runs one history. Each mark in the log contains the index of a history: see
/// [`mark`].
pub(crate) fn record_threads(base: &Ram, histories: &[History]) -> Log {
    let record = Arc::new(Record::new(Arc::new(base.snapshot())));
    let volume = Volume::writable_on(tail::open(record.clone()), CLOCK).expect("open the volume");
    std::thread::scope(|scope| {
        for (index, history) in histories.iter().enumerate() {
            let (record, volume) = (&record, &volume);
            scope.spawn(move || {
                let returned = |number| record.mark(mark(index, number));
                run(volume, history, 0..history.ops.len(), returned).expect("a possible operation");
            });
        }
    });
    volume.close().expect("close the volume");
    drop(volume);
    record.log()
}

/// The mark that the log gets after an operation of a history has returned.
pub(crate) fn mark(history: usize, number: usize) -> u64 {
    (history as u64) << 32 | number as u64
}

/// Runs the operations of a range until an operation fails. Calls `returned` with the number of each successful operation.
pub(crate) fn run(
    volume: &Volume,
    history: &History,
    ops: Range<usize>,
    mut returned: impl FnMut(usize),
) -> ironmap::Result<()> {
    let mut run = Run { fs: volume.fs(), history, open: VecDeque::new() };
    for (number, op) in (ops.start + 1..).zip(&history.ops[ops]) {
        run.carry_out(op, number)
            .map_err(|error| error.context(format!("operation {number}, {op:?}")))?;
        returned(number);
    }
    Ok(())
}

struct Run<'v> {
    fs: &'v Arc<dyn FileSystem>,
    history: &'v History,
    open: VecDeque<Held>,
}

impl Run<'_> {
    fn inode(&self, path: &str) -> ironmap::Result<InodeNo> {
        Ok(self.fs.resolve(path.as_bytes(), Follow::NotLast)?.number())
    }

    /// Splits a path into the parent directory and the name.
    fn place<'p>(&self, path: &'p str) -> ironmap::Result<(InodeNo, &'p [u8])> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.inode(parent)?, name.as_bytes()))
    }

    fn create(&self, path: &str, new: NewFile<'_>) -> ironmap::Result<()> {
        let (dir, name) = self.place(path)?;
        self.fs.writable().unwrap().create(dir, name, new, 0o755, &WHO).map(drop)
    }

    fn carry_out(&mut self, op: &Op, number: usize) -> ironmap::Result<()> {
        let fs = self.fs;
        match op {
            Op::Create(path) => self.create(path, NewFile::Regular),
            Op::Mkdir(path) => self.create(path, NewFile::Directory),
            Op::Mknod { path, what: Special::Fifo } => self.create(path, NewFile::Fifo),
            Op::Mknod { path, what: Special::Device(major, minor) } => {
                self.create(path, NewFile::CharDevice(*major, *minor))
            }
            Op::Symlink { path, target } => self.create(path, NewFile::Symlink(target.as_bytes())),
            Op::Link { path, to } => {
                let (dir, name) = self.place(to)?;
                fs.writable().unwrap().link(self.inode(path)?, dir, name)
            }
            Op::Unlink { path, open } => {
                if *open {
                    self.open.push_back(fs.hold(self.inode(path)?)?);
                }
                let (dir, name) = self.place(path)?;
                fs.writable().unwrap().unlink(dir, name)
            }
            Op::LetGo => {
                drop(self.open.pop_front());
                Ok(())
            }
            Op::Rmdir(path) => {
                let (dir, name) = self.place(path)?;
                fs.writable().unwrap().rmdir(dir, name)
            }
            Op::Rename { from, to, how } => {
                let flags = match how {
                    Renaming::Plain => RenameFlags::empty(),
                    Renaming::NoReplace => RenameFlags::NOREPLACE,
                    Renaming::Exchange => RenameFlags::EXCHANGE,
                    Renaming::Whiteout => RenameFlags::WHITEOUT,
                };
                let ((from, old_name), (to, new_name)) = (self.place(from)?, self.place(to)?);
                fs.writable().unwrap().rename(
                    (from, old_name),
                    (to, new_name),
                    flags,
                    &Credentials::default(),
                )
            }
            Op::Write { path, pos, len } => {
                let written = |pos| self.history.written(number, pos);
                let data: Vec<_> = (*pos..pos + len).map(written).collect();
                let count =
                    fs.writable().unwrap().write(self.inode(path)?, FilePos(*pos as u64), &data)?;
                assert_eq!(count, *len, "a short write on a volume with room");
                Ok(())
            }
            Op::Truncate { path, size } => {
                fs.writable().unwrap().truncate(self.inode(path)?, *size as u64)
            }
            Op::Space { path, how, pos, len } => self.fallocate(path, *how, *pos, *len),
            Op::Set { path, what } => self.set(self.inode(path)?, what, number),
            Op::Fsync(_) | Op::Sync => fs.sync(),
        }
    }

    fn fallocate(&self, path: &str, how: Space, pos: usize, len: usize) -> ironmap::Result<()> {
        let how = match how {
            Space::Allocate { keep_size } => Fallocate::Allocate { keep_size },
            Space::Zero { keep_size } => Fallocate::Zero { keep_size },
            Space::Punch => Fallocate::Punch,
            Space::Collapse => Fallocate::Collapse,
            Space::Insert => Fallocate::Insert,
        };
        self.fs.writable().unwrap().fallocate(
            self.inode(path)?,
            how,
            FilePos(pos as u64),
            len as u64,
        )
    }

    fn set(&self, inode: InodeNo, what: &Set, number: usize) -> ironmap::Result<()> {
        let fs = self.fs;
        let attributes = |set: SetAttributes| fs.writable().unwrap().set_attributes(inode, &set);
        let set = SetAttributes::default();
        match what {
            Set::Permissions(permissions) => attributes(set.permissions(*permissions)),
            Set::Owner(uid) => attributes(set.uid(*uid)),
            Set::Accessed(seconds) => {
                let accessed = Timestamp { seconds: *seconds, nanoseconds: 0 };
                attributes(set.accessed(accessed))
            }
            Set::NoDump(on) => {
                let mut flags = fs.inode(inode)?.flags();
                flags.set(InodeFlags::NO_DUMP, *on);
                fs.writable().unwrap().set_flags(inode, flags)
            }
            Set::Xattr { name, len } => {
                let value = self.history.value(number, *len);
                fs.writable().unwrap().setxattr(inode, name.as_bytes(), &value, SetXattr::Any)
            }
            Set::RemoveXattr(name) => fs.writable().unwrap().removexattr(inode, name.as_bytes()),
            Set::Acl(permissions) => fs.writable().unwrap().setxattr(
                inode,
                ACL.as_bytes(),
                &acl(*permissions),
                SetXattr::Any,
            ),
        }
    }
}
