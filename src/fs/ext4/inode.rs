//! Inodes: reading by number, checks, and decoding.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use zerocopy::FromBytes;

use super::Ext4;
use super::checksum::{Kind, crc32c_raw};
use super::disk::inode::{
    CHECKSUM_HI_OFFSET, CHECKSUM_LO_OFFSET, GOOD_OLD_SIZE, RawInode, RawInodeExtra,
};
use crate::fs::block::Part;

use super::features::{Incompat, RoCompat};
use super::stamps::Waiting;
use super::superblock::Superblock;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::{FileType, InodeFlags, Stat, Timestamp};
use crate::iomap::ExtentMap;
use crate::units::{BlockSize, FsBlock, InodeNo};

const PLACE: Place = Place::new("inode");
/// The space for attributes in an `Inode`, in bytes. The attributes in a 256-byte inode fit without a heap allocation.
const XATTR_ROOM: usize = 96;

impl InodeFlags {
    /// The flags that `chattr` can change without a conversion of the file's content.
    pub(super) const CHANGEABLE: Self = Self::SECURE_DELETE
        .union(Self::UNDELETE)
        .union(Self::COMPRESS)
        .union(Self::SYNC)
        .union(Self::IMMUTABLE)
        .union(Self::APPEND)
        .union(Self::NO_DUMP)
        .union(Self::NO_ATIME)
        .union(Self::NO_TAIL)
        .union(Self::DIR_SYNC)
        .union(Self::TOP_DIR)
        .union(Self::PROJECT_INHERIT);

    /// The flags that must not be set on a file of this type, although `chattr` can change them on other files. With such a flag, the
    /// kernel would refuse every later `chattr` on the file. A test compares this set with a mount by the kernel.
    pub(super) fn refused_by(file_type: FileType) -> Self {
        match file_type {
            FileType::Directory => Self::empty(),
            FileType::Regular => Self::DIR_SYNC | Self::TOP_DIR | Self::PROJECT_INHERIT,
            _ => Self::CHANGEABLE - (Self::NO_DUMP | Self::NO_ATIME),
        }
    }

    /// The flags that a new file of this type inherits from its directory. A regular file inherits flags about content. A directory also
    /// inherits flags about directories. Other types inherit the fewest flags. A test compares these sets with a mount by the kernel.
    pub(super) fn inherited_by(file_type: FileType) -> Self {
        let any = Self::NO_DUMP | Self::NO_ATIME;
        let content = any
            | Self::SECURE_DELETE
            | Self::UNDELETE
            | Self::COMPRESS
            | Self::SYNC
            | Self::JOURNAL_DATA
            | Self::NO_TAIL;
        match file_type {
            FileType::Directory => {
                content | Self::DIR_SYNC | Self::PROJECT_INHERIT | Self::CASEFOLD
            }
            FileType::Regular => content,
            _ => any,
        }
    }
}

/// The maximum number of attempts to read an inode that changes during the read.
const ATTEMPTS: u32 = 64;

/// The short name of the type within this format.
pub(super) type Inode = Ext4Inode;

/// An inode in memory. The inode's block map is loaded when the map is first used.
pub struct Ext4Inode {
    pub(crate) fs: Arc<Ext4>,
    pub(crate) number: InodeNo,
    pub(crate) generation: u32,
    pub(crate) flags: InodeFlags,
    pub(crate) size: u64,
    pub(crate) file_type: FileType,
    /// `i_block`: the root of the block map, inline data, the target of a short symbolic link, or a device number.
    pub(crate) i_block: [u8; 60],
    /// The block of extended attributes, if there is one.
    pub(crate) xattr_block: Option<FsBlock>,
    /// The extended attributes in the inode: the bytes after the first 128 bytes and after the extra fields. `i_extra_isize` is the length
    /// of the extra fields.
    pub(crate) xattr_area: SmallVec<[u8; XATTR_ROOM]>,
    /// The raw value of `i_atime`. In an inode that stores an attribute's value, this field contains the value's checksum.
    pub(crate) raw_atime: u32,
    /// `i_dtime`: the deletion time, or the next inode in the orphan list.
    pub(super) raw_dtime: u32,
    stat: Stat,
    pub(crate) map: OnceLock<Option<Arc<ExtentMap>>>,
}

impl Ext4 {
    /// Reads and checks the inode with this number.
    ///
    /// # Errors
    /// `NotFound` if the inode is not in use or has no name, or if the number is too large. As with Linux's file handles, a deleted inode
    /// cannot be opened by its number. `Corrupt` if the inode is damaged.
    pub fn inode(self: &Arc<Self>, number: InodeNo) -> Result<Inode> {
        let mut inode = self.inode_or_orphan(number)?;
        if inode.stat.links == 0 {
            return Err(not_in_use(number));
        }
        self.show_unconverted(&mut inode);
        Ok(inode)
    }

    /// Reads an inode under its lock. No operation changes the inode during the read. An inode without a name exists only while a program
    /// [holds](Self::hold) it.
    ///
    /// # Errors
    /// The errors of [`inode`](Self::inode), and the errors of `look`.
    pub fn inspect<T>(
        self: &Arc<Self>,
        number: InodeNo,
        look: impl FnOnce(&Inode) -> Result<T>,
    ) -> Result<T> {
        let Some(writing) = &self.writing else { return look(&self.inode(number)?) };
        self.watch(|| {
            let _shared = self.share(number);
            let mut inode = self.inode_or_orphan(number)?;
            if inode.stat.links == 0 && !writing.locks.is_open(number) {
                return Err(not_in_use(number));
            }
            self.show_unconverted(&mut inode);
            look(&inode)
        })
    }

    /// Raises the size in `inode` to the size after the pending writes. The metadata do not record this size yet.
    fn show_unconverted(&self, inode: &mut Inode) {
        let writing = self.writing.as_ref();
        if let Some(open) = writing.and_then(|writing| writing.locks.open(inode.number)) {
            inode.size = inode.size.max(open.pending.size());
            inode.stat.size = inode.size;
        }
    }

    /// Reads the inode with this number, even if it has no name.
    pub(crate) fn inode_or_orphan(self: &Arc<Self>, number: InodeNo) -> Result<Inode> {
        self.check_stopped()?;
        let sb = &self.superblock;
        let place = PLACE.inode(number);
        let size = usize::from(sb.inode_size);
        let InodePlace { block, at, part, uninit } = self.inode_place(number)?;
        let edit = self.fast_commits.inode(number);
        if uninit {
            // This part of the inode table is not initialised, and its content is undefined. The inode can exist only if a fast commit has
            // created it.
            let Some(edit) = edit else { return Err(not_in_use(number)) };
            return Inode::decode(self, number, &edit.inode(&vec![0; size]), place, |_| Ok(()));
        }
        // Pending time stamps are read before the inode's bytes. Another thread may store the stamps in the inode between the two reads.
        // This does no harm: the bytes already contain the stamps when the stamps are applied.
        let stamps = self.writing.as_ref().map(|writing| writing.locks.stamps(number));
        let content = match &self.writing {
            Some(_) => self.blocks.read(block, place)?,
            None => self.blocks.read_in_order(block, place)?,
        };
        let (bytes, place) = (&content[at..at + size], place.block(block));
        if let Some(edit) = edit {
            // These bytes combine the inode in the table with the changes of a fast commit. The inode's checksum does not match them. The
            // fast commit's checksum was verified when the fast commit was read.
            return Inode::decode(self, number, &edit.inode(bytes), place, |_| Ok(()));
        }
        let mut fault = None;
        let mut inode = Inode::decode(self, number, bytes, place, |generation| {
            let Some(seed) = sb.seed else { return Ok(()) };
            let verify = || verify_inode(seed.of_inode(number, generation), bytes, place);
            match content.verify_once(part, verify) {
                Err(error) if self.left.tolerates_inodes() => {
                    fault = Some(error);
                    Ok(())
                }
                verified => verified,
            }
        })?;
        if let Some(error) = fault {
            inode.take_for_salvage(error)?;
        }
        if let Some(stamps) = stamps {
            inode.stamp(stamps);
        }
        Ok(inode)
    }

    /// Whether the inode's block and its attribute block are in memory. If so, a write needs no read from the device to find privileges
    /// (set-ID bits, capabilities) that it must remove.
    pub(crate) fn has_inode(self: &Arc<Self>, number: InodeNo) -> Result<bool> {
        if !self.blocks.has(self.inode_place(number)?.block) {
            return Ok(false);
        }
        let attributes = self.inode_or_orphan(number)?.xattr_block;
        Ok(attributes.is_none_or(|block| self.blocks.has(block)))
    }
}

/// The location of an inode in the inode table.
pub(super) struct InodePlace {
    /// The block of the inode table, and the inode's offset in the block.
    pub(super) block: FsBlock,
    pub(super) at: usize,
    /// The inode, as a part of the block. The part has its own checksum.
    pub(super) part: Part,
    /// Whether no inode of the inode's group is in use.
    uninit: bool,
}

impl Ext4 {
    /// The location of an inode in the inode table.
    pub(super) fn inode_place(&self, number: InodeNo) -> Result<InodePlace> {
        let sb = &self.superblock;
        let number32 = u32::try_from(number.0).ok().filter(|n| (1..=sb.inodes_count).contains(n));
        let Some(number32) = number32 else {
            // An invalid number does not mean that the volume is corrupt, because a program may have passed the number.
            let what = format!("inode {number}: the number is outside 1 to {}", sb.inodes_count);
            return Err(Error::new(ErrorKind::NotFound, what));
        };
        let index = number32 - 1;
        let group = self.group(index / sb.inodes_per_group)?;
        let byte = u64::from(index % sb.inodes_per_group) * u64::from(sb.inode_size);
        let block = FsBlock(group.inode_table.0 + (byte >> sb.block_size.shift()));
        let at = byte as usize & (sb.block_size.bytes() - 1);
        let per_block = sb.block_size.bytes() as u32 / u32::from(sb.inode_size);
        let part = Part::numbered(Kind::Inodes, index, per_block);
        Ok(InodePlace { block, at, part, uninit: group.inodes_uninit })
    }
}

impl Inode {
    /// Checks that this inode is still the inode that `earlier` describes, and not a newer inode with the same number.
    ///
    /// # Errors
    /// `NotFound`.
    pub(crate) fn check_is(&self, earlier: &Stat) -> Result<()> {
        if self.generation == earlier.generation && self.file_type == earlier.file_type {
            return Ok(());
        }
        let what = format!(
            "inode {} has been removed, and its number belongs to another file",
            self.number
        );
        Err(Error::new(ErrorKind::NotFound, what))
    }

    /// Runs `read` without the inode's lock, and repeats `read` if the inode has changed during the read. This check is sufficient: before
    /// another file can reuse a block, this inode must release the block, and the release changes the inode.
    ///
    /// # Errors
    /// `NotFound` if the number belongs to another inode; `Busy` if the inode changes during every attempt; the errors of `read`.
    pub(super) fn read_current<T>(&self, read: impl Fn(&Self) -> Result<T>) -> Result<T> {
        if self.fs.writing.is_none() {
            return read(self);
        }
        let (mut newest, mut corrupt) = (None::<Self>, None);
        for _ in 0..ATTEMPTS {
            let inode = newest.as_ref().unwrap_or(self);
            let result = read(inode);
            let now = self.fs.inode_or_orphan(self.number)?;
            now.check_is(&self.stat)?;
            if now.points_as(inode) {
                match result {
                    // The inode is unchanged, but a list of attributes may have changed in place. The inode of an attribute's value may
                    // have been freed and reused. A value can then have a wrong checksum although nothing is corrupt. The read is therefore
                    // repeated. A corrupt value causes the error at every attempt.
                    Err(error) if error.kind() == ErrorKind::Corrupt => corrupt = Some(error),
                    result => return result,
                }
            }
            newest = Some(now);
        }
        let busy = || {
            let what = format!("inode {} changed during each attempt to read it", self.number);
            Error::new(ErrorKind::Busy, what)
        };
        Err(corrupt.unwrap_or_else(busy))
    }

    /// Compares two versions of an inode. Returns whether the content and the attributes have the same locations and sizes in both.
    fn points_as(&self, other: &Self) -> bool {
        self.i_block == other.i_block
            && self.size == other.size
            && self.xattr_block == other.xattr_block
            && self.xattr_area == other.xattr_area
    }
}

/// Returns the length of an inode's extra fields, and the first 32 bytes of these fields. Bytes past `i_extra_isize` are replaced by zeros.
/// A missing field thus reads as 0.
fn extra_part(rest: &[u8], place: Place) -> Result<(usize, [u8; 32])> {
    let mut bytes = [0_u8; 32];
    let Some(length) = rest.first_chunk::<2>() else { return Ok((0, bytes)) };
    let size = usize::from(u16::from_le_bytes(*length));
    if size % 4 != 0 || size > rest.len() {
        return Err(place.field("i_extra_isize").corrupt(format!("{size} bytes")));
    }
    let present = size.min(bytes.len());
    bytes[..present].copy_from_slice(&rest[..present]);
    Ok((size, bytes))
}

/// The file type in `i_mode`, and the size. Two kinds of inodes have an upper half of the size: regular files, and directories on a volume
/// with largedir. In all other inodes, these bytes are another field.
fn type_and_size(sb: &Superblock, raw: &RawInode, place: Place) -> Result<(FileType, u64)> {
    let mode = u32::from(raw.i_mode.get());
    let Some(file_type) = FileType::from_mode(mode) else {
        let what = format!("the mode {mode:#o} does not contain a valid file type");
        return Err(place.field("i_mode").corrupt(what));
    };
    let mut size = u64::from(raw.i_size_lo.get());
    let large = file_type == FileType::Regular
        || (file_type == FileType::Directory && sb.incompat.contains(Incompat::LARGEDIR));
    if large {
        size |= u64::from(raw.i_size_high.get()) << 32;
    }
    if size > i64::MAX as u64 {
        return Err(place.field("i_size").corrupt(format!("{size} bytes")));
    }
    Ok((file_type, size))
}

fn flags(sb: &Superblock, raw: &RawInode, place: Place) -> Result<InodeFlags> {
    let flags = InodeFlags::from_bits_retain(raw.i_flags.get());
    if flags.contains(InodeFlags::INLINE_DATA) && !sb.incompat.contains(Incompat::INLINE_DATA) {
        return Err(place
            .field("i_flags")
            .corrupt("the flag inline_data is set without the feature inline_data"));
    }
    Ok(flags)
}

/// The block of extended attributes.
fn xattr_block(sb: &Superblock, raw: &RawInode) -> Option<FsBlock> {
    let mut block = u64::from(raw.i_file_acl_lo.get());
    // Without the feature 64bit, the upper half is unused and may contain any bytes.
    if sb.incompat.contains(Incompat::SIXTY_FOUR_BIT) {
        block |= u64::from(raw.i_file_acl_high.get()) << 32;
    }
    (block != 0).then_some(FsBlock(block))
}

/// Decodes a time stamp. `seconds` is the lower 32 bits of the seconds. `extra` contains the nanoseconds and 2 further bits of the seconds.
fn stamp(seconds: u32, extra: u32) -> Timestamp {
    Timestamp {
        seconds: i64::from(seconds as i32) + (i64::from(extra & 3) << 32),
        nanoseconds: (extra >> 2).min(999_999_999),
    }
}

impl Inode {
    /// Decodes an inode. `verify` is called with the inode's generation.
    pub(super) fn decode(
        fs: &Arc<Ext4>,
        number: InodeNo,
        bytes: &[u8],
        place: Place,
        verify: impl FnOnce(u32) -> Result<()>,
    ) -> Result<Self> {
        let sb = &fs.superblock;
        let Ok((raw, rest)) = RawInode::ref_from_prefix(bytes) else {
            return Err(place.corrupt("the inode is truncated"));
        };
        let generation = raw.i_generation.get();
        if raw.i_links_count.get() == 0 && raw.i_mode.get() == 0 {
            return Err(not_in_use(number));
        }

        let (extra_size, extra_bytes) = extra_part(rest, place)?;
        let extra: &RawInodeExtra = zerocopy::transmute_ref!(&extra_bytes);
        verify(generation)?;

        let (file_type, size) = type_and_size(sb, raw, place)?;
        let flags = flags(sb, raw, place)?;
        let mut blocks = sectors(sb, raw);
        // The content in the inode counts as used blocks, as in Linux. If the count were 0, programs that preserve holes would treat the
        // file as a hole.
        if flags.contains(InodeFlags::INLINE_DATA) && file_type == FileType::Regular {
            blocks += size.div_ceil(512);
        }
        let has = |end: usize| extra_size >= end;
        let stat = Stat {
            inode: number,
            file_type,
            mode: u32::from(raw.i_mode.get()),
            links: u32::from(raw.i_links_count.get()),
            uid: u32::from(raw.i_uid.get()) | u32::from(raw.i_uid_high.get()) << 16,
            gid: u32::from(raw.i_gid.get()) | u32::from(raw.i_gid_high.get()) << 16,
            size,
            blocks,
            block_size: sb.block_size.bytes() as u32,
            accessed: stamp(raw.i_atime.get(), extra.i_atime_extra.get()),
            modified: stamp(raw.i_mtime.get(), extra.i_mtime_extra.get()),
            changed: stamp(raw.i_ctime.get(), extra.i_ctime_extra.get()),
            created: has(24).then(|| stamp(extra.i_crtime.get(), extra.i_crtime_extra.get())),
            device: device_number(file_type, &raw.i_block),
            flags: raw.i_flags.get(),
            generation,
            project: (sb.ro_compat.contains(RoCompat::PROJECT) && has(32))
                .then(|| extra.i_projid.get()),
        };
        // `extra_size` is 0 in two cases: the inode has only 128 bytes, or i_extra_isize is 0. In both cases the inode contains no
        // attributes.
        let xattr_area = if extra_size == 0 { &[][..] } else { &rest[extra_size..] };
        Ok(Self {
            fs: Arc::clone(fs),
            number,
            generation,
            flags,
            size,
            file_type,
            i_block: raw.i_block,
            xattr_block: xattr_block(sb, raw),
            xattr_area: SmallVec::from_slice(xattr_area),
            raw_atime: raw.i_atime.get(),
            raw_dtime: raw.i_dtime.get(),
            stat,
            map: OnceLock::new(),
        })
    }

    /// The file system of the inode.
    pub(crate) fn file_system(&self) -> &Arc<Ext4> {
        &self.fs
    }

    /// Applies time stamps that are not yet in the inode's bytes.
    fn stamp(&mut self, stamps: Waiting) {
        let stat = &mut self.stat;
        stat.accessed = stamps.read.unwrap_or(stat.accessed);
        stat.modified = stamps.written.unwrap_or(stat.modified);
        stat.changed = stamps.written.unwrap_or(stat.changed);
    }

    /// The inode number.
    #[must_use]
    pub fn number(&self) -> InodeNo {
        self.number
    }

    /// The values for `stat`.
    #[must_use]
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// The file type.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    /// The size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The block size of the inode's file system.
    #[must_use]
    #[inline]
    pub fn block_size(&self) -> BlockSize {
        self.fs.superblock.block_size
    }

    /// The flags.
    #[must_use]
    pub fn flags(&self) -> InodeFlags {
        self.flags
    }
}

/// `i_blocks`, converted to units of 512 bytes.
pub(super) fn sectors(sb: &Superblock, raw: &RawInode) -> u64 {
    let low = u64::from(raw.i_blocks_lo.get());
    if !sb.ro_compat.contains(RoCompat::HUGE_FILE) {
        return low;
    }
    let blocks = low | u64::from(raw.i_blocks_high.get()) << 32;
    let in_blocks = InodeFlags::from_bits_retain(raw.i_flags.get()).contains(InodeFlags::HUGE_FILE);
    if in_blocks { blocks << (sb.block_size.shift() - 9) } else { blocks }
}

/// Computes the checksum of an inode, with zeros in the two checksum fields. Also returns whether the inode has a field for the upper half
/// of the checksum.
fn inode_checksum(seed: u32, bytes: &[u8]) -> (u32, bool) {
    let (old, extra) = bytes.split_at(GOOD_OLD_SIZE);
    let mut sum = crc32c_raw(seed, &old[..CHECKSUM_LO_OFFSET]);
    sum = crc32c_raw(sum, &[0; 2]);
    sum = crc32c_raw(sum, &old[CHECKSUM_LO_OFFSET + 2..]);
    let extra_size = extra.first_chunk().map_or(0, |size| u16::from_le_bytes(*size));
    if extra_size < 4 {
        return (crc32c_raw(sum, extra) & 0xFFFF, false);
    }
    let at = CHECKSUM_HI_OFFSET - GOOD_OLD_SIZE;
    sum = crc32c_raw(sum, &extra[..at]);
    sum = crc32c_raw(sum, &[0; 2]);
    (crc32c_raw(sum, &extra[at + 2..]), true)
}

/// The stored and the computed checksum of an inode.
pub(super) fn inode_checksums(seed: u32, bytes: &[u8]) -> (u32, u32) {
    let half = |at: usize| u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (computed, wide) = inode_checksum(seed, bytes);
    let high = if wide { half(CHECKSUM_HI_OFFSET) << 16 } else { 0 };
    (half(CHECKSUM_LO_OFFSET) | high, computed)
}

fn verify_inode(seed: u32, bytes: &[u8], place: Place) -> Result<()> {
    let (stored, computed) = inode_checksums(seed, bytes);
    if stored == computed {
        Ok(())
    } else {
        Err(place.field("i_checksum").bad_checksum(stored, computed))
    }
}

/// Stores the checksum of an inode. `bytes` must be all bytes of the inode, with the inode size that the superblock contains.
pub(crate) fn seal_inode(sb: &Superblock, number: InodeNo, bytes: &mut [u8]) {
    let Ok((raw, _)) = RawInode::ref_from_prefix(bytes) else { return };
    let Some(seed) = sb.inode_seed(number, raw.i_generation.get()) else { return };
    let (sum, wide) = inode_checksum(seed, bytes);
    let sum = sum.to_le_bytes();
    bytes[CHECKSUM_LO_OFFSET..CHECKSUM_LO_OFFSET + 2].copy_from_slice(&sum[..2]);
    if wide {
        bytes[CHECKSUM_HI_OFFSET..CHECKSUM_HI_OFFSET + 2].copy_from_slice(&sum[2..]);
    }
}

fn not_in_use(number: InodeNo) -> Error {
    Error::new(ErrorKind::NotFound, format!("inode {number} is not in use"))
}

/// Decodes the device number in `i_block`. The first word contains numbers with 8 + 8 bits (major and minor). The second word contains
/// numbers with 12 + 20 bits.
fn device_number(file_type: FileType, i_block: &[u8; 60]) -> Option<(u32, u32)> {
    if !matches!(file_type, FileType::CharDevice | FileType::BlockDevice) {
        return None;
    }
    let word = |at: usize| {
        u32::from_le_bytes([i_block[at], i_block[at + 1], i_block[at + 2], i_block[at + 3]])
    };
    let old = word(0);
    if old != 0 {
        return Some((old >> 8 & 0xFF, old & 0xFF));
    }
    let new = word(4);
    Some((new >> 8 & 0xFFF, new & 0xFF | new >> 12 & 0xF_FF00))
}
