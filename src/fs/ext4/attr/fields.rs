//! Setters of an inode's fields, the counterpart of the decoder in [`Inode`](super::super::inode::Inode).
//!
//! Each setter changes bytes of an inode in the inode table. Setters are called within
//! [`Ext4::update_inode`](super::super::Ext4::update_inode), which updates the checksum. If the inode has no space for a field, the field
//! is skipped, as in Linux.

use zerocopy::little_endian::U32;

use super::super::disk::inode::RawInodeExtra;
use super::super::features::RoCompat;
use super::super::inode::sectors;
use super::super::raw::{InodeMut, TimesSet};
use super::super::stamps::Waiting;
use super::super::superblock::Superblock;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::{InodeFlags, Timestamp};
use crate::units::FsBlock;

/// The time stamps to set; a time stamp that is `None` is not changed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Times {
    pub(crate) accessed: Option<Timestamp>,
    pub(crate) modified: Option<Timestamp>,
    pub(crate) changed: Option<Timestamp>,
    pub(crate) created: Option<Timestamp>,
}

impl Times {
    /// The time stamps that must be set if the inode itself changes.
    pub(crate) fn changed(now: Timestamp) -> Self {
        Self { changed: Some(now), ..Self::default() }
    }
}

impl InodeMut<'_> {
    /// Sets the type and the permissions, as `st_mode`.
    pub(crate) fn set_mode(&mut self, mode: u32) -> Result<()> {
        self.fields()?.i_mode.set(mode as u16);
        Ok(())
    }

    /// Sets the owner and the group.
    pub(crate) fn set_owner(&mut self, uid: u32, gid: u32) -> Result<()> {
        let fields = self.fields()?;
        fields.i_uid.set(uid as u16);
        fields.i_uid_high.set((uid >> 16) as u16);
        fields.i_gid.set(gid as u16);
        fields.i_gid_high.set((gid >> 16) as u16);
        Ok(())
    }

    /// Sets time stamps. A time out of the inode's range is replaced by the nearest time in the range.
    pub(crate) fn set_times(&mut self, times: &Times) -> Result<()> {
        self.set_time(times.accessed, Stamp::Accessed)?;
        self.set_time(times.modified, Stamp::Modified)?;
        self.set_time(times.changed, Stamp::Changed)?;
        self.set_time(times.created, Stamp::Created)
    }

    /// Sets the time stamps that are set in memory and wait for a change of the inode. A time stamp that was already set during the same
    /// change of the inode keeps its value.
    pub(crate) fn set_waiting(&mut self, stamps: Waiting) -> Result<()> {
        let set = self.times_set();
        let unless = |time, stamp: Option<Timestamp>| stamp.filter(|_| !set.contains(time));
        self.set_times(&Times {
            accessed: unless(TimesSet::ACCESSED, stamps.read),
            modified: unless(TimesSet::MODIFIED, stamps.written),
            changed: unless(TimesSet::CHANGED, stamps.written),
            created: None,
        })
    }

    fn set_time(&mut self, time: Option<Timestamp>, stamp: Stamp) -> Result<()> {
        let Some(time) = time else { return Ok(()) };
        self.note_set(match stamp {
            Stamp::Accessed => TimesSet::ACCESSED,
            Stamp::Modified => TimesSet::MODIFIED,
            Stamp::Changed => TimesSet::CHANGED,
            Stamp::Created => TimesSet::empty(),
        });
        let wide = self.has_extra(stamp.extra_end());
        let (seconds, more) = encode_time(time, wide);
        let old = self.fields()?;
        let place = match stamp {
            Stamp::Accessed => Some(&mut old.i_atime),
            Stamp::Modified => Some(&mut old.i_mtime),
            Stamp::Changed => Some(&mut old.i_ctime),
            Stamp::Created => None,
        };
        if let Some(place) = place {
            place.set(seconds);
        }
        let Some(extra) = self.extra().filter(|_| wide) else { return Ok(()) };
        match stamp {
            Stamp::Accessed => extra.i_atime_extra.set(more),
            Stamp::Modified => extra.i_mtime_extra.set(more),
            Stamp::Changed => extra.i_ctime_extra.set(more),
            Stamp::Created => {
                extra.i_crtime.set(seconds);
                extra.i_crtime_extra.set(more);
            }
        }
        Ok(())
    }

    /// Sets the size in bytes. For a size above 2 GiB, the caller also sets `large_file` in the superblock.
    pub(crate) fn set_size(&mut self, size: u64) -> Result<()> {
        let fields = self.fields()?;
        fields.i_size_lo.set(size as u32);
        fields.i_size_high.set((size >> 32) as u32);
        Ok(())
    }

    /// Sets the link count.
    pub(crate) fn set_links(&mut self, links: u16) -> Result<()> {
        self.fields()?.i_links_count.set(links);
        Ok(())
    }

    /// The current link count.
    pub(crate) fn links(&mut self) -> Result<u16> {
        Ok(self.fields()?.i_links_count.get())
    }

    /// The current flags.
    pub(crate) fn flags(&mut self) -> Result<InodeFlags> {
        Ok(InodeFlags::from_bits_retain(self.fields()?.i_flags.get()))
    }

    /// Sets all flags.
    pub(crate) fn set_flags(&mut self, flags: InodeFlags) -> Result<()> {
        self.fields()?.i_flags.set(flags.bits());
        Ok(())
    }

    /// Sets the project id; `Unsupported` if the inode has no space for a project id.
    pub(crate) fn set_project(&mut self, project: u32) -> Result<()> {
        let there = self.has_extra(32);
        match self.extra().filter(|_| there) {
            Some(extra) => {
                extra.i_projid.set(project);
                Ok(())
            }
            None if project == 0 => Ok(()),
            None => Err(Error::unsupported("the inode is too small for a project id")),
        }
    }

    pub(crate) fn generation(&mut self) -> Result<u32> {
        Ok(self.fields()?.i_generation.get())
    }

    /// Sets the generation. The checksums of extent nodes and directory blocks depend on the generation. This function does not update
    /// these checksums.
    pub(crate) fn set_generation(&mut self, generation: u32) -> Result<()> {
        self.fields()?.i_generation.set(generation);
        Ok(())
    }

    /// Sets `i_dtime` to the deletion time in seconds, or to the next inode of the orphan list.
    pub(crate) fn set_dtime(&mut self, dtime: u32) -> Result<()> {
        self.fields()?.i_dtime.set(dtime);
        Ok(())
    }

    /// Sets the number of the attribute block.
    pub(crate) fn set_xattr_block(&mut self, block: Option<FsBlock>) -> Result<()> {
        let block = block.map_or(0, |block| block.0);
        let fields = self.fields()?;
        fields.i_file_acl_lo.set(block as u32);
        fields.i_file_acl_high.set((block >> 32) as u16);
        Ok(())
    }

    /// `i_block`: the root of the map, inline data, the target of a short link, or a device number.
    pub(crate) fn i_block(&mut self) -> Result<&mut [u8; 60]> {
        Ok(&mut self.fields()?.i_block)
    }

    /// Changes the inode's count of used blocks. The count includes the blocks of the inode's map and its attribute block.
    ///
    /// # Errors
    /// `FileTooLarge` if the number is too large for the field; `Corrupt` if more blocks are removed than the inode has.
    pub(crate) fn add_blocks(&mut self, sb: &Superblock, change: i64) -> Result<()> {
        let shift = sb.block_size.shift() - 9;
        let huge = sb.ro_compat.contains(RoCompat::HUGE_FILE);
        let fields = self.fields()?;
        let mut flags = InodeFlags::from_bits_retain(fields.i_flags.get());
        let sectors = sectors(sb, fields);
        let changed =
            change.checked_mul(1 << shift).and_then(|change| sectors.checked_add_signed(change));
        let Some(sectors) = changed else {
            let place = Place::new("inode").field("i_blocks");
            return Err(place.corrupt(format!("the inode has {sectors} sectors, and a change by {change} blocks exceeds the valid range")));
        };
        // If the count fits into 48 bits, its unit is 512 bytes. If not, its unit is a block, and a flag of the inode records this unit.
        let (count, in_blocks) =
            if sectors >> 48 == 0 { (sectors, false) } else { (sectors >> shift, true) };
        if count >> 48 != 0 || (count >> 32 != 0 && !huge) {
            let what = format!("the file has {sectors} sectors, more than the field can store");
            return Err(Error::new(ErrorKind::FileTooLarge, what));
        }
        flags.set(InodeFlags::HUGE_FILE, in_blocks);
        fields.i_flags.set(flags.bits());
        fields.i_blocks_lo.set(count as u32);
        fields.i_blocks_high.set((count >> 32) as u16);
        Ok(())
    }

    /// Whether the inode's extra part includes the field that ends at this byte.
    fn has_extra(&self, end: usize) -> bool {
        self.extra_size() >= end
    }
}

#[derive(Clone, Copy)]
enum Stamp {
    Accessed,
    Modified,
    Changed,
    Created,
}

impl Stamp {
    /// The offset of the end of the nanosecond field in the extra part.
    const fn extra_end(self) -> usize {
        size_of::<U32>()
            + match self {
                Self::Accessed => std::mem::offset_of!(RawInodeExtra, i_atime_extra),
                Self::Modified => std::mem::offset_of!(RawInodeExtra, i_mtime_extra),
                Self::Changed => std::mem::offset_of!(RawInodeExtra, i_ctime_extra),
                Self::Created => std::mem::offset_of!(RawInodeExtra, i_crtime_extra),
            }
    }
}

/// Encodes a time stamp in two words. The first word contains 32 bits of signed seconds. The second word contains 30 bits of nanoseconds
/// and two more bits of seconds. These two bits extend the range only to later times. If `wide` is false, there is no second word, and
/// times end in 2038.
fn encode_time(time: Timestamp, wide: bool) -> (u32, u32) {
    const FIRST: i64 = i32::MIN as i64;
    let last = i64::from(i32::MAX) + if wide { 3 << 32 } else { 0 };
    let seconds = time.seconds.clamp(FIRST, last);
    // A time out of range is replaced by the nearest whole second, as in Linux.
    let nanoseconds = if seconds == time.seconds { time.nanoseconds } else { 0 };
    let low = seconds as i32;
    let epoch = (seconds - i64::from(low)) >> 32;
    (low as u32, nanoseconds << 2 | epoch as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two bits of the second word count the epochs of 2^32 seconds since 1901. The first and the last second of each epoch must be encoded
    /// correctly.
    #[test]
    fn times_take_34_bits() {
        for epoch in 0..4_i64 {
            for edge in [i64::from(i32::MIN), -1, 0, i64::from(i32::MAX)] {
                let seconds = edge + (epoch << 32);
                let (low, more) =
                    encode_time(Timestamp { seconds, nanoseconds: 999_999_999 }, true);
                assert_eq!(i64::from(low as i32) + (i64::from(more & 3) << 32), seconds);
                assert_eq!(more >> 2, 999_999_999);
            }
        }
        let end = Timestamp { seconds: i64::MAX, nanoseconds: 0 };
        assert_eq!(encode_time(end, true), (i32::MAX as u32, 3));
        assert_eq!(encode_time(Timestamp { nanoseconds: 5, ..end }, true), (i32::MAX as u32, 3));
        assert_eq!(encode_time(end, false), (i32::MAX as u32, 0));
        let start = Timestamp { seconds: i64::MIN, nanoseconds: 0 };
        assert_eq!(encode_time(start, true), (i32::MIN as u32, 0));
    }
}
