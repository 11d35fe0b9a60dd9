//! The operations, and their random choice. Names and open files are few, so that different operations use the same files.

use rustix::fs::{FallocateFlags, FileType, OFlags, RenameFlags, XattrFlags};

use crate::rng::Rng;

/// The index of an open file.
pub(super) type Slot = usize;
pub(super) const SLOTS: u64 = 4;

/// An operation of one user. A path is relative to the root of the volume.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Mkdir(String, u32),
    Mknod(String, FileType, u32),
    Symlink(String, String),
    Unlink(String),
    Rmdir(String),
    Link(String, String),
    Rename(String, String, RenameFlags),
    ReadLink(String),
    List(String),
    Access(String, u32),
    Chmod(String, u32),
    /// Changes the owner and the group. If the `bool` is true, a symbolic link is not followed, so the owner of the link itself changes.
    Chown(String, Option<u32>, Option<u32>, bool),
    /// The new access time and modification time in seconds.
    Times(String, Option<i64>, Option<i64>),
    SetXattr(String, &'static str, Vec<u8>, XattrFlags),
    GetXattr(String, &'static str),
    RemoveXattr(String, &'static str),
    Truncate(String, u64),
    Open(Slot, String, OFlags, u32),
    Close(Slot),
    Write(Slot, u64, usize, u64),
    Read(Slot, u64, usize),
    Resize(Slot, u64),
    Fallocate(Slot, FallocateFlags, u64, u64),
    Data(Slot, u64),
    Hole(Slot, u64),
    Copy(Slot, u64, Slot, u64, usize),
    Sync(Slot, bool),
}

const NAMES: [&str; 6] = ["a", "b", "c", "LONG", "e", "TOO LONG"];
const XATTRS: [&str; 5] =
    ["user.a", "user.colour", "trusted.x", "user.a-long-name-of-an-attribute", "security.x"];
const TYPES: [FileType; 4] =
    [FileType::Fifo, FileType::Socket, FileType::CharacterDevice, FileType::RegularFile];

fn one<T: Clone>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize].clone()
}

fn chance(rng: &mut Rng, one_in: u64) -> bool {
    rng.below(one_in) == 0
}

fn name(rng: &mut Rng) -> String {
    // Names of 256 bytes are rare, because they are always refused.
    let last = if chance(rng, 20) { NAMES.len() } else { NAMES.len() - 1 };
    match one(rng, &NAMES[..last]) {
        "LONG" => "n".repeat(255),
        "TOO LONG" => "n".repeat(256),
        name => name.to_owned(),
    }
}

/// A path of at most three names.
fn path(rng: &mut Rng) -> String {
    let depth = 1 + rng.below(3);
    let mut path = (0..depth).map(|_| name(rng)).collect::<Vec<_>>().join("/");
    if chance(rng, 40) {
        path.push('/');
    }
    path
}

/// A target for a symbolic link. The target is within the volume.
fn target(rng: &mut Rng) -> String {
    match rng.below(4) {
        0 => "t".repeat(1 + rng.below(300) as usize),
        1 => ".".to_owned(),
        _ => path(rng),
    }
}

fn permissions(rng: &mut Rng) -> u32 {
    one(rng, &[0o644, 0o755, 0o700, 0o777, 0o1777, 0o2777, 0o4755, 0o2755, 0o6777, 0, 0o600])
}

fn flags(rng: &mut Rng) -> OFlags {
    let mut flags = one(rng, &[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR]);
    for (one_in, flag) in [
        (2, OFlags::CREATE),
        (8, OFlags::EXCL),
        (8, OFlags::TRUNC),
        (8, OFlags::APPEND),
        (4, OFlags::DIRECT),
        (16, OFlags::SYNC),
        (16, OFlags::DSYNC),
        (16, OFlags::NOFOLLOW),
        (32, OFlags::DIRECTORY),
    ] {
        if chance(rng, one_in) {
            flags |= flag;
        }
    }
    // Without O_CREAT, the meaning of O_EXCL is undefined.
    if flags.contains(OFlags::EXCL) && !flags.contains(OFlags::CREATE) {
        flags - OFlags::EXCL
    } else {
        flags
    }
}

/// A position near the beginning, in the file, or far past its end. Most positions are valid for a direct request.
fn position(rng: &mut Rng) -> u64 {
    let at = match rng.below(16) {
        0..=5 => rng.below(10_000),
        6 => (1 << 32) - 3000 + rng.below(6000),
        _ => rng.below(120_000),
    };
    if chance(rng, 2) { at } else { at / 512 * 512 }
}

fn length(rng: &mut Rng) -> u64 {
    let len = if chance(rng, 3) { rng.below(60_000) } else { rng.below(5000) };
    if chance(rng, 2) { len } else { len / 512 * 512 }
}

fn fallocate(rng: &mut Rng) -> FallocateFlags {
    let keep = FallocateFlags::KEEP_SIZE;
    one(
        rng,
        &[
            FallocateFlags::empty(),
            keep,
            FallocateFlags::PUNCH_HOLE | keep,
            FallocateFlags::PUNCH_HOLE | keep,
            FallocateFlags::ZERO_RANGE,
            FallocateFlags::ZERO_RANGE | keep,
            FallocateFlags::PUNCH_HOLE,
        ],
    )
}

impl Op {
    pub(super) fn random(rng: &mut Rng) -> Self {
        if chance(rng, 2) { Self::of_data(rng) } else { Self::of_names(rng) }
    }

    fn of_names(rng: &mut Rng) -> Self {
        let first = path(rng);
        match rng.below(40) {
            0..=6 => Self::Mkdir(first, permissions(rng) | 0o500),
            7..=8 => Self::Mknod(first, one(rng, &TYPES), permissions(rng)),
            9..=10 => Self::Symlink(target(rng), first),
            11..=13 => Self::Unlink(first),
            14..=15 => Self::Rmdir(first),
            16..=17 => Self::Link(first, path(rng)),
            18..=22 => {
                let none = RenameFlags::empty();
                let how = [
                    none,
                    none,
                    none,
                    RenameFlags::NOREPLACE,
                    RenameFlags::EXCHANGE,
                    RenameFlags::WHITEOUT,
                ];
                Self::Rename(first, path(rng), one(rng, &how))
            }
            23 => Self::ReadLink(first),
            24..=25 => Self::List(first),
            26 => Self::Access(first, rng.below(8) as u32),
            27..=28 => Self::Chmod(first, permissions(rng)),
            29..=30 => {
                let mut who = || one(rng, &[None, Some(0), Some(1000), Some(1001), Some(70_000)]);
                let (uid, gid) = (who(), who());
                // At least one of the two IDs is set, because FUSE does not check the caller's permission for a change without IDs.
                let gid = if uid.is_none() { gid.or(Some(0)) } else { gid };
                Self::Chown(first, uid, gid, chance(rng, 4))
            }
            31..=32 => {
                let mut when = || {
                    one(
                        rng,
                        &[None, Some(-5), Some(0), Some(978_307_200), Some(i64::from(i32::MAX))],
                    )
                };
                Self::Times(first, when(), when())
            }
            33..=35 => {
                let len = one(rng, &[0, 10, 100, 180, 900]);
                let how = one(
                    rng,
                    &[
                        XattrFlags::empty(),
                        XattrFlags::empty(),
                        XattrFlags::CREATE,
                        XattrFlags::REPLACE,
                    ],
                );
                Self::SetXattr(first, one(rng, &XATTRS), rng.bytes(len), how)
            }
            36 => Self::GetXattr(first, one(rng, &XATTRS)),
            37..=38 => Self::RemoveXattr(first, one(rng, &XATTRS)),
            _ => Self::Truncate(first, position(rng)),
        }
    }

    fn of_data(rng: &mut Rng) -> Self {
        let slot = rng.below(SLOTS) as usize;
        match rng.below(32) {
            0..=7 => Self::Open(slot, path(rng), flags(rng), permissions(rng)),
            8 => Self::Close(slot),
            9..=15 => Self::Write(slot, position(rng), length(rng) as usize, rng.next()),
            16..=19 => Self::Read(slot, position(rng), length(rng) as usize),
            20..=21 => Self::Resize(slot, position(rng)),
            22..=25 => Self::Fallocate(slot, fallocate(rng), position(rng), length(rng)),
            26 => Self::Data(slot, position(rng)),
            27 => Self::Hole(slot, position(rng)),
            28..=29 => {
                let other = rng.below(SLOTS) as usize;
                Self::Copy(slot, position(rng), other, position(rng), length(rng) as usize)
            }
            _ => Self::Sync(slot, chance(rng, 2)),
        }
    }

    /// The paths that the operation names. The files are checked before and after the operation.
    pub(super) fn paths(&self) -> Vec<&str> {
        match self {
            Self::Mkdir(path, _)
            | Self::Mknod(path, ..)
            | Self::Symlink(_, path)
            | Self::Unlink(path)
            | Self::Rmdir(path)
            | Self::ReadLink(path)
            | Self::List(path)
            | Self::Access(path, _)
            | Self::Chmod(path, _)
            | Self::Chown(path, ..)
            | Self::Times(path, ..)
            | Self::SetXattr(path, ..)
            | Self::GetXattr(path, _)
            | Self::RemoveXattr(path, _)
            | Self::Truncate(path, _)
            | Self::Open(_, path, ..) => vec![path],
            Self::Link(from, to) | Self::Rename(from, to, _) => vec![from, to],
            _ => Vec::new(),
        }
    }

    /// Whether the alignment of a direct request is valid. Requests with a wrong alignment are not compared. The kernel's ext4 may change
    /// times before it refuses a request, and it reads holes at any position.
    pub(super) fn is_aligned(&self, flags: OFlags) -> bool {
        match self {
            Self::Write(..) if flags.contains(OFlags::APPEND) => false,
            Self::Write(_, pos, len, _) | Self::Read(_, pos, len) => {
                (pos | *len as u64).is_multiple_of(512)
            }
            _ => true,
        }
    }

    /// The open files that the operation uses.
    pub(super) fn slots(&self) -> Vec<Slot> {
        match self {
            Self::Close(slot)
            | Self::Write(slot, ..)
            | Self::Read(slot, ..)
            | Self::Resize(slot, _)
            | Self::Fallocate(slot, ..)
            | Self::Data(slot, _)
            | Self::Hole(slot, _)
            | Self::Sync(slot, _) => vec![*slot],
            Self::Copy(from, _, to, ..) => vec![*from, *to],
            _ => Vec::new(),
        }
    }
}
