//! Writes the changes of a resize to the device. The order of the writes ensures that a power failure at any point does no damage.

use std::io::IoSlice;

use zerocopy::IntoBytes;

use super::Volume;
use super::edits::{Edits, Rank};
use super::moves::Moves;
use super::shape::Shape;
use crate::error::{Context, Result};
use crate::fs::ext4::Incompat;
use crate::fs::ext4::disk::superblock::{RawSuperblock, STATE_VALID};
use crate::fs::ext4::jbd2::{self, LogWriter};
use crate::fs::ext4::superblock::{change_features, change_superblock, seal_superblock};
use crate::sorting::Sorting;
use crate::sys::Buffer;
use crate::units::{DevOffset, FsBlock};

/// The maximum number of bytes that one request copies. It is a multiple of every block size.
const COPIED: usize = 1 << 20;

/// When the new size of the volume is written to the superblock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// The size is written in the same transaction as the other blocks. The new content of these blocks is valid only for the new size.
    WithEdits,
    /// The size is written after the other blocks, whose new content is also valid for the old size. The superblock must not be in the
    /// transaction: at a mount, the kernel reads the size before it replays the journal.
    AfterEdits,
    /// Only the journal moves, and the size does not change. A transaction is not possible, because a transaction in the journal cannot
    /// describe the move of the journal itself.
    Same,
}

impl Volume {
    /// Writes all changed blocks, and then the superblock of the resized volume.
    pub(super) fn commit(
        &self,
        edits: &Edits<'_>,
        shape: &Shape,
        descriptors: &[u8],
        size: Size,
    ) -> Result<()> {
        let blocks = &self.found.blocks;
        self.copy_moved(edits).context(|| "move of blocks")?;
        blocks.write_home(&edits.of(|rank| rank == Rank::Fresh))?;
        blocks.flush()?;
        self.check_held()?;
        let log = if size == Size::Same { None } else { jbd2::restore(&self.found)? };
        self.write_in_place(log, edits, shape, size).context(|| "resize")?;

        // After this write, the device contains the new volume. The resize inode, the reserved descriptor blocks and the backups may not be
        // written yet, but e2fsck can rebuild them. Until they are written, the superblock does not have the flag for a clean volume.
        let unchecked = |raw: &mut RawSuperblock| {
            *raw = shape.raw.clone();
            raw.s_state.set(raw.s_state.get() & !STATE_VALID);
        };
        self.found.write_superblock(unchecked)?;
        blocks.write_home(&edits.of(|rank| rank == Rank::Reserved))?;
        self.write_backups(shape, descriptors).context(|| "backups")?;
        blocks.flush()?;
        self.found.write_superblock(|raw| *raw = shape.raw.clone())
    }

    /// Copies the content of moved blocks to their new positions.
    fn copy_moved(&self, edits: &Edits<'_>) -> Result<()> {
        let (device, size) = (self.device(), self.found.superblock.block_size);
        let mut buffer = Buffer::aligned(COPIED)?;
        for (old, new, count) in edits.moves.into_iter().flat_map(Moves::all) {
            if let Some(dry) = &self.dry {
                dry.copy(old, new, count);
                continue;
            }
            let (from, to) = (size.offset_of(FsBlock(old)), size.offset_of(FsBlock(new)));
            let len = count << size.shift();
            for at in (0..len).step_by(COPIED) {
                let piece = &mut buffer[..(len - at).min(COPIED as u64) as usize];
                device.read_exact_at(piece, DevOffset(from.0 + at))?;
                device.write_all_at(&[IoSlice::new(piece)], DevOffset(to.0 + at), false)?;
            }
        }
        Ok(())
    }

    /// Writes the blocks that are in use in the old volume. If the log has enough space, the blocks are written in one transaction.
    /// Otherwise they are written in the order of [`Rank`].
    fn write_in_place(
        &self,
        log: Option<LogWriter>,
        edits: &Edits<'_>,
        shape: &Shape,
        size: Size,
    ) -> Result<()> {
        let blocks = &self.found.blocks;
        let last = if size == Size::WithEdits { Rank::Reserved } else { Rank::Gone };
        let mut versions = edits.of(|rank| (Rank::Bitmaps..=last).contains(&rank));
        // The transaction may also contain the superblock. One more block of the log may therefore be needed.
        if let Some(mut log) = log.filter(|log| log.has_room_for(versions.len() + 1)) {
            let recovers = |raw: &mut RawSuperblock| {
                change_features(raw, |features| features.incompat.insert(Incompat::RECOVER));
            };
            self.found.write_superblock(recovers)?;
            if size == Size::WithEdits {
                let (block, at) = self.found.superblock.position();
                let mut content = blocks.read_device(block)?;
                change_superblock(&mut content.for_change()?[at..], |raw| {
                    *raw = shape.raw.clone();
                    recovers(raw);
                    Ok(())
                })?;
                versions.push((block, content));
                versions.order_by_key(|(block, _)| *block);
            }
            log.open(blocks)?;
            log.commit(blocks, versions, &[], self.clock.now())?;
            return log.close(blocks);
        }
        self.found.write_superblock(|raw| raw.s_state.set(raw.s_state.get() & !STATE_VALID))?;
        for rank in [Rank::Bitmaps, Rank::Inodes, Rank::Entries, Rank::Gone] {
            blocks.write_home(&edits.of(|other| other == rank))?;
            blocks.flush()?;
        }
        Ok(())
    }

    /// Writes all backups of the superblock, and all copies of the group descriptors, for the new volume.
    fn write_backups(&self, shape: &Shape, descriptors: &[u8]) -> Result<()> {
        let (sb, blocks) = (&shape.sb, &self.found.blocks);
        let layout = shape.layout();
        let size = sb.block_size.bytes();
        let mut copy = shape.raw.clone();
        copy.s_state.set(copy.s_state.get() & !STATE_VALID);
        for group in (1..sb.groups).filter(|group| sb.group_has_backup(*group)) {
            copy.s_block_group_nr.set(group as u16);
            seal_superblock(&mut copy);
            let mut content = Buffer::aligned(size)?;
            content[..size_of::<RawSuperblock>()].copy_from_slice(copy.as_bytes());
            blocks.write_device(sb.group_start(group), &[IoSlice::new(&content)], false)?;
        }
        for (range, at) in layout.descriptor_copies() {
            let bytes = &descriptors[range.start as usize * size..range.end as usize * size];
            blocks.write_device(FsBlock(at), &[IoSlice::new(bytes)], false)?;
        }
        Ok(())
    }
}
