//! Workloads run by ironmap on a recorded device.

use std::sync::Arc;

use ironmap::Volume;
use ironmap::device::{Log, Ram, Record};
use ironmap::fs::Timestamp;
use ironmap::fs::ext4::{Clock, Credentials, Ext4, Fallocate, Follow, Held, NewFile, RenameFlags};
use ironmap::units::{FilePos, InodeNo};

use crate::history::{History, Op, Space, written};

const WHO: Credentials = Credentials { uid: 0, gid: 0, umask: 0o022 };

/// Time stands still: a workload does the same each time.
pub(crate) const CLOCK: Clock = Clock::Fixed(Timestamp { seconds: 1_000_000_000, nanoseconds: 0 });

/// What ironmap does to a device that holds `base` when it opens it, runs the operations and closes it.
pub(crate) fn record(base: &Ram, history: &History) -> Log {
    let record = Arc::new(Record::new(Arc::new(base.snapshot())));
    let volume = Volume::writable_on(record.clone(), CLOCK).expect("open the volume");
    run(&volume, history, |number| record.mark(number as u64)).expect("a possible operation");
    volume.close().expect("close the volume");
    record.log()
}

/// Runs the operations until one fails; `returned` hears of each that did not.
pub(crate) fn run(
    volume: &Volume,
    history: &History,
    mut returned: impl FnMut(usize),
) -> ironmap::Result<()> {
    let mut open = Vec::new();
    for (number, op) in (1..).zip(&history.ops) {
        carry_out(volume.fs(), op, number, &mut open)
            .map_err(|error| error.context(format!("operation {number}, {op:?}")))?;
        returned(number);
    }
    Ok(())
}

fn carry_out(fs: &Arc<Ext4>, op: &Op, number: usize, open: &mut Vec<Held>) -> ironmap::Result<()> {
    let inode = |path: &str| Ok(fs.resolve(path.as_bytes(), Follow::NotLast)?.number());
    let place = |path: &'_ str| -> ironmap::Result<(InodeNo, Vec<u8>)> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((inode(parent)?, name.as_bytes().to_vec()))
    };
    let create = |path: &str, new: NewFile<'_>| {
        let (dir, name) = place(path)?;
        fs.create(dir, &name, new, 0o755, &WHO).map(drop)
    };
    let rename = |from: &str, to: &str, flags| {
        let ((from, old_name), (to, new_name)) = (place(from)?, place(to)?);
        fs.rename(from, &old_name, to, &new_name, flags)
    };
    match op {
        Op::Create(path) => create(path, NewFile::Regular),
        Op::Mkdir(path) => create(path, NewFile::Directory),
        Op::Symlink { path, target } => create(path, NewFile::Symlink(target.as_bytes())),
        Op::Link { path, to } => {
            let (dir, name) = place(to)?;
            fs.link(inode(path)?, dir, &name)
        }
        Op::Unlink { path, open: held } => {
            if *held {
                open.push(fs.hold(inode(path)?)?);
            }
            let (dir, name) = place(path)?;
            fs.unlink(dir, &name)
        }
        Op::Rmdir(path) => {
            let (dir, name) = place(path)?;
            fs.rmdir(dir, &name)
        }
        Op::Rename { from, to } => rename(from, to, RenameFlags::empty()),
        Op::Exchange { one, other } => rename(one, other, RenameFlags::EXCHANGE),
        Op::Write { path, pos, len } => {
            let data: Vec<_> = (*pos..pos + len).map(|pos| written(number, pos)).collect();
            let count = fs.write(inode(path)?, FilePos(*pos as u64), &data)?;
            assert_eq!(count, *len, "a short write on a volume with room");
            Ok(())
        }
        Op::Truncate { path, size } => fs.truncate(inode(path)?, *size as u64),
        Op::Space { path, how, pos, len } => {
            let how = match *how {
                Space::Allocate { keep_size } => Fallocate::Allocate { keep_size },
                Space::Zero { keep_size } => Fallocate::Zero { keep_size },
                Space::Punch => Fallocate::Punch,
                Space::Collapse => Fallocate::Collapse,
                Space::Insert => Fallocate::Insert,
            };
            fs.fallocate(inode(path)?, how, FilePos(*pos as u64), *len as u64)
        }
        Op::Fsync(_) | Op::Sync => fs.sync(),
    }
}
