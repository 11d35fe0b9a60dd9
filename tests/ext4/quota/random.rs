//! Random operations that change how much space and how many inodes an owner uses.

use std::sync::Arc;

use ironmap::fs::ext4::ROOT;

use ironmap::fs::{
    Credentials, Fallocate, FileSystem, InodeFlags, NewFile, RenameFlags, SetAttributes, SetXattr,
};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{ErrorKind, Result};

use crate::common::rng::Rng;

/// The number of owners of the files, and the number of different names.
#[derive(Clone, Copy)]
pub(crate) struct Scope {
    /// The owner of all files. With `None`, the files have many owners, with adjacent ids and distant ids. The entries of these owners need
    /// more than one block of the quota file.
    pub(crate) id: Option<u32>,
    pub(crate) names: u64,
}

impl Scope {
    fn id(self, rng: &mut Rng) -> u32 {
        match (self.id, rng.below(4)) {
            (Some(id), _) => id,
            (None, 0) => 0,
            (None, 1) => 1000 + rng.below(40) as u32,
            (None, 2) => [1, 255, 256, 65_536, 1 << 24, u32::MAX - 1][rng.below(6) as usize],
            (None, _) => rng.next() as u32 & 0x0F0F_0F0F,
        }
    }
}

/// Runs one random operation. The operation may fail with an expected error. The usage must be correct in each case.
pub(crate) fn step(fs: &Arc<dyn FileSystem>, rng: &mut Rng, scope: Scope) -> Option<ErrorKind> {
    let error = operation(fs, rng, scope).err()?;
    let accident = matches!(
        error.kind(),
        ErrorKind::Io(_) | ErrorKind::Corrupt | ErrorKind::LimitExceeded | ErrorKind::ReadOnly
    );
    assert!(!accident, "{error}");
    Some(error.kind())
}

fn operation(fs: &Arc<dyn FileSystem>, rng: &mut Rng, scope: Scope) -> Result<()> {
    let (dir, name) = place(fs, rng, scope);
    // The inode stays in memory, because another thread may remove the file.
    let found = || fs.lookup(dir, &name).and_then(|inode| fs.hold(inode.number()));
    let pos = FilePos(rng.below(200_000));
    let writer = fs.writable().unwrap();
    match rng.below(16) {
        0..=3 => create(fs, rng, scope, dir, &name),
        4 => writer.unlink(dir, &name),
        5 => writer.rmdir(dir, &name),
        6 => {
            let (to, new_name) = place(fs, rng, scope);
            let flags = match rng.below(4) {
                0 => RenameFlags::EXCHANGE,
                1 => RenameFlags::WHITEOUT,
                _ => RenameFlags::empty(),
            };
            writer.rename((dir, &name), (to, &new_name), flags, &Credentials::default())
        }
        7 => {
            let (to, new_name) = place(fs, rng, scope);
            writer.link(found()?.number(), to, &new_name)
        }
        8 | 9 => {
            let len = [10, 200, 5000, 60_000][rng.below(4) as usize];
            writer.write(found()?.number(), pos, &rng.bytes(len)).map(drop)
        }
        10 => writer.truncate(found()?.number(), rng.below(100_000)),
        11 => {
            let how = match rng.below(4) {
                0 => Fallocate::Punch,
                1 => Fallocate::Zero { keep_size: true },
                _ => Fallocate::Allocate { keep_size: rng.below(2) == 0 },
            };
            writer.fallocate(found()?.number(), how, pos, 1 + rng.below(100_000))
        }
        12 => {
            let set = SetAttributes::new()
                .uid(scope.id(rng))
                .gid(scope.id(rng))
                .project((rng.below(2) == 0).then(|| scope.id(rng)));
            writer.set_attributes(found()?.number(), &set)
        }
        13 => {
            let held = found()?;
            let inode = held.inode()?;
            writer.set_flags(inode.number(), inode.flags() ^ InodeFlags::PROJECT_INHERIT)
        }
        14 => {
            let attribute = format!("user.{}", rng.below(4));
            let len = [3, 70, 700, 3000, 20_000][rng.below(5) as usize];
            // Some values are equal, so that files may share them.
            let value = vec![rng.below(2) as u8; len];
            writer.setxattr(found()?.number(), attribute.as_bytes(), &value, SetXattr::Any)
        }
        _ => writer.removexattr(found()?.number(), format!("user.{}", rng.below(4)).as_bytes()),
    }
}

fn create(
    fs: &Arc<dyn FileSystem>,
    rng: &mut Rng,
    scope: Scope,
    dir: InodeNo,
    name: &[u8],
) -> Result<()> {
    let long = rng.bytes(900).iter().map(|byte| b'a' + byte % 26).collect::<Vec<_>>();
    let file = match rng.below(8) {
        0..=3 => NewFile::Regular,
        4 | 5 => NewFile::Directory,
        6 => NewFile::Symlink(&long[..rng.below(900) as usize]),
        _ => NewFile::Fifo,
    };
    let who = Credentials::new(scope.id(rng), scope.id(rng), 0);
    fs.writable().unwrap().create(dir, name, file, 0o755, &who).map(drop)
}

/// A name in the root or in a directory below it.
fn place(fs: &Arc<dyn FileSystem>, rng: &mut Rng, scope: Scope) -> (InodeNo, Vec<u8>) {
    let mut name = || format!("name-{}", rng.below(scope.names)).into_bytes();
    let (above, last) = (name(), name());
    let dir = fs.lookup(ROOT, &above).map(|inode| inode.number()).ok();
    let below = dir.filter(|_| rng.below(2) == 0);
    let is_dir = |dir: &InodeNo| {
        fs.inode(*dir).is_ok_and(|dir| dir.file_type() == ironmap::fs::FileType::Directory)
    };
    (below.filter(is_dir).unwrap_or(ROOT), last)
}
