//! The bytes of a newly allocated inode.

use super::super::disk::extent;
use super::super::disk::inode::GOOD_OLD_SIZE;
use super::super::features::{Incompat, RoCompat};
use super::super::jbd2::Handle;
use super::super::operation::MayChange;
use super::super::raw::InodeMut;
use super::super::superblock::Superblock;
use super::fields::Times;
use crate::error::{Error, Result};
use crate::fs::{InodeFlags, Timestamp};

/// The initial state of a new inode.
pub(crate) struct NewInode<'a> {
    /// The type and the permissions, as `st_mode`.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) links: u16,
    /// The flags, without the flags for the kind of map.
    pub(crate) flags: InodeFlags,
    /// The value of all time stamps.
    pub(crate) time: Timestamp,
    pub(crate) generation: u32,
    /// The project id, which is stored only if the volume has the project feature.
    pub(crate) project: u32,
    pub(crate) body: Body<'a>,
}

/// The initial content of `i_block`.
#[derive(Clone, Copy)]
pub(crate) enum Body<'a> {
    /// An empty map, for a regular file, a directory or a symbolic link with a long target.
    Mapped,
    /// The target of a symbolic link, at most 59 bytes long.
    Target(&'a [u8]),
    /// The major and minor numbers of a device node.
    Device(u32, u32),
    /// No content, for a pipe or a socket.
    Nothing,
}

impl Handle<'_> {
    /// Initialises a newly allocated inode. The previous content of the inode's slot in the inode table is overwritten.
    ///
    /// # Errors
    /// The errors of [`update_inode`](Self::update_inode); `InvalidInput` for a target that is too long.
    pub(crate) fn init_inode(&mut self, inode: &impl MayChange, new: &NewInode<'_>) -> Result<()> {
        if let Body::Target(target) = new.body
            && target.len() >= 60
        {
            return Err(Error::invalid(
                "a symbolic link's target of 60 bytes or more does not fit into the inode",
            ));
        }
        let sb = &self.fs.superblock;
        self.update_inode(inode, |inode| fill_inode(sb, inode, new))
    }
}

fn fill_inode(sb: &Superblock, inode: &mut InodeMut<'_>, new: &NewInode<'_>) -> Result<()> {
    inode.begin();
    // A new generation number makes the handles of an earlier file with the same inode number invalid.
    let earlier = inode.generation()?;
    let bytes = inode.bytes();
    bytes.fill(0);
    if let Some(extra) = bytes.get_mut(GOOD_OLD_SIZE..GOOD_OLD_SIZE + 2) {
        extra.copy_from_slice(&sb.extra_isize.to_le_bytes());
    }
    inode.set_mode(new.mode)?;
    inode.set_owner(new.uid, new.gid)?;
    inode.set_links(new.links)?;
    let taken = new.generation == earlier;
    inode.set_generation(new.generation.wrapping_add(u32::from(taken)))?;
    let time = Some(new.time);
    let times = Times { accessed: time, modified: time, changed: time, created: time };
    inode.set_times(&times)?;
    if sb.ro_compat.contains(RoCompat::PROJECT) {
        inode.set_project(new.project)?;
    }
    let mut flags = new.flags;
    match new.body {
        Body::Mapped if sb.incompat.contains(Incompat::EXTENTS) => {
            flags |= InodeFlags::EXTENTS;
            inode.i_block()?.copy_from_slice(&extent::empty_root());
        }
        Body::Mapped | Body::Nothing => {}
        Body::Target(target) => {
            inode.i_block()?[..target.len()].copy_from_slice(target);
            inode.set_size(target.len() as u64)?;
        }
        Body::Device(major, minor) => *inode.i_block()? = encode_device(major, minor),
    }
    inode.set_flags(flags)
}

/// Encodes a device number as Linux does: 8 + 8 bits in the first word. Larger numbers use 12 + 20 bits in the second word.
fn encode_device(major: u32, minor: u32) -> [u8; 60] {
    let mut i_block = [0; 60];
    if major < 256 && minor < 256 {
        i_block[..4].copy_from_slice(&(major << 8 | minor).to_le_bytes());
    } else {
        let word = minor & 0xFF | (major & 0xFFF) << 8 | (minor & 0xF_FF00) << 12;
        i_block[4..8].copy_from_slice(&word.to_le_bytes());
    }
    i_block
}
