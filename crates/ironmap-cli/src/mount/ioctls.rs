//! `ioctl` on a mount: flags of inodes (`lsattr`, `chattr`), and the discard of free space (`fstrim`).

use ironmap::Errno;
use ironmap::fs::{InodeFlags, InodeOps};
use ironmap::units::InodeNo;

use super::fail::{Fail, Result};
use super::{Asker, Mount};

/// Requests of `linux/fs.h`. x86-64 and AArch64 have the same encoding.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_ATTRIBUTES: u32 = 0x801C_581F;
const TRIM: u32 = 0xC018_5879;

/// The flags that a program can change, at least on some types of files. `chattr` writes all flags that it has read, so a change of any
/// other flag is ignored.
const MODIFIABLE: InodeFlags = InodeFlags::from_bits_retain(0x624B_C0FF);

/// The flags of `struct fsxattr` (`FS_XFLAG_*` of `linux/fs.h`).
const ATTRIBUTES: [(InodeFlags, u32); 6] = [
    (InodeFlags::IMMUTABLE, 0x8),
    (InodeFlags::APPEND, 0x10),
    (InodeFlags::SYNC, 0x20),
    (InodeFlags::NO_ATIME, 0x40),
    (InodeFlags::NO_DUMP, 0x80),
    (InodeFlags::PROJECT_INHERIT, 0x200),
];

impl Mount {
    /// Serves a request, and returns its output. The server checks permissions, because kernels before 5.13 do not.
    pub(super) fn ioctl(
        &self,
        inode: InodeNo,
        request: u32,
        data: &[u8],
        asker: Asker,
    ) -> Result<Vec<u8>> {
        match request {
            GET_FLAGS => {
                let flags = self.fs().inspect(inode, |inode| Ok(inode.flags()))?;
                Ok((flags & InodeFlags::SHOWN).bits().to_ne_bytes().to_vec())
            }
            // The kernel sends this request before a request that sets flags.
            GET_ATTRIBUTES => {
                let of = |inode: &dyn InodeOps| (inode.flags(), inode.stat().project.unwrap_or(0));
                let (flags, project) = self.fs().inspect(inode, |inode| Ok(of(inode)))?;
                let is_set = |(flag, _): &&(InodeFlags, u32)| flags.contains(*flag);
                let bits = ATTRIBUTES.iter().filter(is_set).fold(0, |all, (_, bit)| all | bit);
                // The sizes and the number of extents are not reported. The other fields are reserved.
                Ok([bits, 0, 0, project, 0, 0, 0].map(u32::to_ne_bytes).concat())
            }
            SET_FLAGS => {
                let bits = data.first_chunk().ok_or_else(|| Fail::new(Errno::EINVAL))?;
                self.set_flags(
                    inode,
                    InodeFlags::from_bits_retain(u32::from_ne_bytes(*bits)),
                    asker,
                )
            }
            TRIM => self.trim(data, asker),
            _ => Err(Fail::new(Errno::ENOTTY)),
        }
    }

    fn set_flags(&self, inode: InodeNo, flags: InodeFlags, asker: Asker) -> Result<Vec<u8>> {
        let (old, owner) =
            self.fs().inspect(inode, |inode| Ok((inode.flags(), inode.stat().uid)))?;
        let protects = (old ^ flags).intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
        if asker.uid != 0 && (asker.uid != owner || protects) {
            return Err(Fail::new(Errno::EPERM));
        }
        if !InodeFlags::SHOWN.contains(flags) {
            return Err(Fail::new(Errno::EOPNOTSUPP));
        }
        let new = (flags & MODIFIABLE) | (old - MODIFIABLE);
        if (old & new).contains(InodeFlags::IMMUTABLE) && old != new {
            return Err(Fail::new(Errno::EPERM));
        }
        self.fs().writable()?.set_flags(inode, new)?;
        let manner = self.fs().inspect(inode, |inode| Ok(self.options.manner(inode)))?;
        self.nodes.get(inode).set_manner(manner);
        self.changed(&[inode])?;
        // The ioctl changes the ctime, and the kernel does not know this. Therefore the cached attributes are dropped.
        self.forget_attributes(inode);
        Ok(Vec::new())
    }

    /// Discards the free space of the volume. `data` contains the start, the length and the minimum length of a discarded extent, in bytes
    /// (`struct fstrim_range`).
    fn trim(&self, data: &[u8], asker: Asker) -> Result<Vec<u8>> {
        if asker.uid != 0 {
            return Err(Fail::new(Errno::EPERM));
        }
        let number = |at: usize| {
            let bytes = data.get(8 * at..).and_then(|data| data.first_chunk());
            bytes.map(|bytes| u64::from_ne_bytes(*bytes)).ok_or_else(|| Fail::new(Errno::EINVAL))
        };
        let (from, len, least) = (number(0)?, number(1)?, number(2)?);
        let (block, end) = (u64::from(self.fs().usage().block_size), self.volume.device().size());
        let group = self
            .volume
            .ext4()
            .map_or(end, |ext4| u64::from(ext4.superblock().blocks_per_group) * block);
        // EINVAL means that the range is outside the volume or shorter than a block, or that the minimum length exceeds a group. The
        // kernel's ext4 has the same rule.
        if from >= end || len < block || least > group {
            return Err(Fail::new(Errno::EINVAL));
        }
        if from != 0 || len < end {
            return Err(Fail::new(Errno::EOPNOTSUPP));
        }
        let trimmed = self.fs().writable()?.trim(least)?;
        Ok([from, trimmed, least].map(u64::to_ne_bytes).concat())
    }
}
