//! The file system's part of direct writes: the allocation of blocks for holes, the removal of privileges, and the update of the metadata
//! for written data.

use std::ops::{Deref, Range};
use std::sync::Arc;

use super::refuse;

use crate::error::{ErrorKind, Result};
use crate::fs::InodeFlags;
use crate::fs::KeepSetId;
use crate::fs::ext4::operation::{Content, Locked, Operation, Patience, WriteState};
use crate::fs::ext4::writing::Writing;
use crate::fs::ext4::{Ext4, Inode};
use crate::iomap::{ExtentState, IomapType, Written};
use crate::open_file::{Alone, Unconverted};
use crate::units::{BlockSize, FileBlock, FilePos, InodeNo};

/// The number of blocks that a change of the inode and of the orphan list needs.
const CREDITS: u32 = 8;

/// A locked file whose blocks are about to be moved or freed. This thread has exclusive access to the content, and all written data are
/// recorded in the metadata.
pub(super) struct Quiesced<'a> {
    writing: &'a Writing,
    // The fields are dropped in the order of their declaration. The change of the inode is therefore visible before the access to the
    // content is released. The next thread that gets access to the content sees the change, and maps its range again.
    file: Locked<'a>,
    content: Content<'a>,
}

impl<'a> Deref for Quiesced<'a> {
    type Target = Locked<'a>;

    fn deref(&self) -> &Locked<'a> {
        &self.file
    }
}

impl Quiesced<'_> {
    /// Records that no blocks past the end of the file remain. `orphan` is true if the inode is still on the orphan list.
    pub(super) fn is_cut(&self, orphan: bool) {
        let state = self.content.state();
        state.set_orphan(orphan && state.is_orphan());
    }
}

impl Drop for Quiesced<'_> {
    fn drop(&mut self) {
        self.content.state().mapped_in(self.writing.transactions.newest());
    }
}

impl<'a> Operation<'a> {
    /// Locks a file for a change of its content. Waits for requests in flight, and updates the metadata for written data.
    ///
    /// # Errors
    /// `Busy` if the calling thread must wait for other requests while it has requests in flight; `ReadOnly`, `Io`.
    pub(super) fn quiesce(&self, number: InodeNo) -> Result<Quiesced<'a>> {
        let content = self.lock_content(number, 0..u64::MAX)?;
        let state = content.state();
        let file = self.lock(number);
        if !state.is_settled() {
            self.convert_under(&file, &state, content.alone())?;
            // No other thread uses the content. Blocks past the end of the file can therefore only belong to failed writes.
            self.cut_orphan(&file, &state)?;
        }
        let counters = &self.writing.counters;
        counters.locked();
        if content.alone().is_some_and(Alone::has_waited) {
            counters.drained();
        }
        Ok(Quiesced { writing: self.writing, file, content })
    }
}

impl Ext4 {
    /// Refuses a write to a file that does not permit the write.
    ///
    /// # Errors
    /// `ReadOnly` for a volume that was closed or whose journal was aborted; `NotPermitted` for an immutable file, and for an append-only
    /// file if the write does not begin at `end` (`None` if the caller has checked the position); `FileTooLarge`, `Encrypted`,
    /// `Unsupported`.
    pub(crate) fn admit_write(
        &self,
        inode: &Inode,
        pos: FilePos,
        len: u64,
        end: Option<u64>,
    ) -> Result<()> {
        self.writing()?.transactions.check()?;
        self.check_content_changes(inode)?;
        let appends = end.is_none_or(|end| pos.0 == end);
        if inode.flags().contains(InodeFlags::APPEND) && !appends {
            return Err(refuse(ErrorKind::NotPermitted, "the file is append-only"));
        }
        self.check_size(inode, pos.0.saturating_add(len))
    }

    /// Allocates unwritten blocks for the holes of a byte range. While blocks lie past the file's size, the inode is on the orphan list.
    /// Returns the end of the allocated part. If the space is exhausted after the first block and `whole` is not set, only the start of the
    /// range is allocated. Blocks that were allocated before an error remain unwritten.
    ///
    /// # Errors
    /// `NoSpace` or `Quota` if the first block cannot be allocated; with `whole`, also if a later block cannot be allocated; `ReadOnly`,
    /// `Io`.
    pub(crate) fn allocate_for_write(
        self: &Arc<Self>,
        number: InodeNo,
        state: &WriteState,
        range: Range<u64>,
        whole: bool,
    ) -> Result<u64> {
        self.operate(|op| {
            let file = op.lock(number);
            op.writing.counters.upgraded();
            let inode = file.inode()?;
            let size = self.superblock.block_size;
            if range.end > size.blocks_for(inode.size()) << size.shift() && !state.is_orphan() {
                op.transact(CREDITS, |handle| op.add_orphan(handle, &file))?;
                state.set_orphan(true);
            }
            let result = op.allocate_range(&file, range.clone());
            state.mapped_in(op.writing.transactions.newest());
            let reached = match result {
                Ok(()) => range.end,
                Err(error) if error.is_for_space() => {
                    let hole = op.first_hole(&file, range.clone());
                    match hole.inspect_err(|_| state.allocated(range.end))? {
                        Some(hole) if hole <= range.start => return Err(error),
                        Some(hole) if whole => {
                            state.allocated(hole);
                            return Err(error);
                        }
                        hole => hole.unwrap_or(range.end),
                    }
                }
                Err(error) => {
                    state.allocated(range.end);
                    return Err(error);
                }
            };
            state.allocated(reached);
            Ok(reached)
        })
    }

    /// Zeros the bytes of a file's last block that are past the end. The file is about to grow.
    ///
    /// # Errors
    /// `Busy` if the calling thread must wait for other requests while it has requests in flight; `ReadOnly`, `Io`.
    pub(crate) fn zero_past_end(self: &Arc<Self>, number: InodeNo) -> Result<()> {
        self.operate(|op| {
            let file = op.quiesce(number)?;
            op.writing.counters.upgraded();
            let inode = file.inode()?;
            op.zero_tail(&inode, inode.size())
        })
    }

    /// Updates a file's metadata for written data (a conversion): unwritten extents become written, and the size grows.
    ///
    /// # Errors
    /// `Busy` if other requests use a partly written block and the [patience](Patience::Some) does not permit a wait for these requests;
    /// `NoSpace` if an extent must be split; `ReadOnly`, `Io`.
    pub(crate) fn convert(
        self: &Arc<Self>,
        number: InodeNo,
        state: &Arc<WriteState>,
        patience: Patience,
    ) -> Result<()> {
        let open = &state.inode;
        self.operate(|op| {
            if state.is_settled() {
                return Ok(());
            }
            let alone = match self.cut_blocks(&open.unconverted()) {
                None => None,
                Some(range) => match patience {
                    Patience::None => Alone::at_once(open, range),
                    Patience::Some => Some(Alone::wait(open, range)?),
                    Patience::All => Some(Alone::wait_surely(open, range)?),
                },
            };
            let Writing { locks, counters, .. } = op.writing;
            if alone.as_ref().is_some_and(Alone::has_waited) {
                counters.drained();
            }
            let file = op.lock(number);
            // While this thread waited, the file may have been freed and its inode number reused.
            if !locks.is_known_as(number, state) || state.is_settled() {
                return Ok(());
            }
            op.convert_under(&file, state, alone.as_ref())
        })
    }

    /// The range from the first partly written block to the last partly written block.
    fn cut_blocks(&self, what: &Unconverted) -> Option<Range<u64>> {
        let block = self.superblock.block_size.bytes() as u64;
        let cut = |at: &u64| !at.is_multiple_of(block);
        let ends = |part: &Written| [part.pos.0, part.end().0];
        let first = what.written.iter().flat_map(ends).find(cut)?;
        let last =
            what.written.iter().rev().flat_map(|part| ends(part).into_iter().rev()).find(cut)?;
        Some(first / block * block..last.next_multiple_of(block))
    }
}

impl Operation<'_> {
    /// Updates the metadata for written data while the inode is locked. This thread has exclusive access to the range `alone`. Partly
    /// written blocks outside of this range are skipped.
    fn convert_under(
        &self,
        file: &Locked<'_>,
        state: &WriteState,
        alone: Option<&Alone>,
    ) -> Result<()> {
        let inode = file.inode()?;
        let mut what = state.inode.unconverted();
        let beyond = state.beyond();
        let (blocks, unfilled) = self.fill_blocks(&inode, &mut what, alone);
        let credits = CREDITS + inode.credits_for_map();
        let orphan = self.transact(credits + CREDITS, |handle| {
            let inode = file.inode()?;
            let size = inode.size().max(what.size);
            // The size is set before the extents are converted. If the extents were converted first, another thread could commit before the
            // size is set. A recovery would then find written blocks past the size.
            if what.size > inode.size() {
                // The time stamps are not set here, because the writes have set them. A caller may also have set other time stamps after
                // the writes.
                handle.update_inode(file, |raw| raw.set_size(size))?;
                self.note_large_size(handle, size)?;
            }
            for range in &blocks {
                let inode = file.inode()?;
                if handle.credits_left() < credits {
                    handle.renew(credits)?;
                }
                inode.set_range_state(handle, range.clone(), ExtentState::Written)?;
            }
            // Blocks past the end of the file that are not yet recorded as written belong to a failed write or to a write in flight.
            let block_size = self.superblock.block_size;
            let orphan =
                beyond.is_some_and(|end| block_size.blocks_for(end) > block_size.blocks_for(size));
            if beyond.is_some() && !orphan && inode.stat().links > 0 {
                self.remove_orphan(handle, file)?;
            }
            state.mapped_in(handle.tid());
            Ok(orphan)
        })?;
        if !orphan {
            state.set_orphan(false);
        }
        self.writing.counters.converted(blocks.len());
        state.inode.converted(&what);
        unfilled
    }

    /// Returns the blocks with written data, and zeros the bytes around the data in partly written blocks. Skips a partly written block if
    /// other threads may use the block, or if the zeroing fails. The data of a skipped block stay in `what`. Also returns the last error of
    /// the zeroing.
    fn fill_blocks(
        &self,
        inode: &Inode,
        what: &mut Unconverted,
        alone: Option<&Alone>,
    ) -> (Vec<Range<FileBlock>>, Result<()>) {
        let size = self.superblock.block_size;
        let block = size.bytes() as u64;
        let written = std::mem::take(&mut what.written);
        let is_mine = |gap: &Range<u64>| {
            let held = gap.start / block * block..gap.end.next_multiple_of(block);
            gap.is_empty() || alone.is_some_and(|alone| alone.holds(&held))
        };
        let (mut result, mut unfilled) = (Ok(()), Vec::new());
        let mut filled = filled_blocks(size, &written, |gap| {
            let is_mine = is_mine(gap);
            if is_mine && let Err(error) = self.zero_unwritten(inode, gap.clone()) {
                unfilled.push(gap.start / block);
                result = Err(error);
            }
            is_mine
        });
        if result.is_err() {
            filled = filled_blocks(size, &written, |gap| {
                is_mine(gap) && (gap.is_empty() || !unfilled.contains(&(gap.start / block)))
            });
        }
        what.written = filled.1;
        (filled.0, result)
    }

    /// Zeros a part of a block on the device, if the block is still unwritten.
    fn zero_unwritten(&self, inode: &Inode, part: Range<u64>) -> Result<()> {
        let size = self.superblock.block_size;
        if part.is_empty() {
            return Ok(());
        }
        let block = size.block_of(FilePos(part.start));
        let (start, _, kind) = self.mapping(inode, block..FileBlock(block.0 + 1))?;
        if kind != IomapType::Unwritten {
            return Ok(());
        }
        self.writing.counters.zeroed(part.end - part.start);
        self.write_zeros(inode, block, start, part)
    }
}

impl Ext4 {
    /// Makes a file's written data durable, with the metadata that a read of the data needs. If `data_only` is not set, the file's other
    /// metadata also become durable.
    ///
    /// # Errors
    /// The errors of [`convert`](Self::convert) and of a commit.
    pub(crate) fn sync_open(
        self: &Arc<Self>,
        number: InodeNo,
        state: &Arc<WriteState>,
        data_only: bool,
    ) -> Result<()> {
        self.convert(number, state, Patience::Some)?;
        if !data_only {
            self.store_stamps_waiting(number)?;
        }
        let transactions = &self.writing()?.transactions;
        transactions.check()?;
        let newest = if data_only { state.newest_map() } else { transactions.newest() };
        self.commit_with_data(newest)
    }

    /// Whether all metadata that are needed to read a file's blocks are durable. Ranges that wait for a conversion are not in a transaction
    /// yet. These ranges must be checked before the transaction of the map is checked, because a conversion first records its transaction
    /// and then removes the ranges.
    pub(crate) fn map_is_durable(&self, state: &WriteState) -> bool {
        if !state.inode.pending.is_converted() {
            return false;
        }
        let writing = self.writing();
        writing.is_ok_and(|writing| writing.transactions.is_committed(state.newest_map()))
    }

    /// Updates the metadata for the written data of all files. After an error for one file, continues with the other files.
    ///
    /// # Errors
    /// One of the errors of [`convert`](Self::convert). If several files fail, `Busy` is preferred, because a retry succeeds when the
    /// thread has received its completions.
    pub(crate) fn convert_all(self: &Arc<Self>, patience: Patience) -> Result<()> {
        let mut converted = Ok(());
        for (number, state) in self.writing()?.locks.unsettled() {
            if let Err(error) = self.convert(number, &state, patience)
                && (converted.is_ok() || error.kind() == ErrorKind::Busy)
            {
                converted = Err(error);
            }
        }
        converted
    }
}

impl Operation<'_> {
    /// Removes set-id bits and capabilities.
    pub(in crate::fs::ext4) fn strip_privileges(
        &self,
        number: InodeNo,
        keep: KeepSetId,
    ) -> Result<bool> {
        let file = self.lock(number);
        self.writing.counters.upgraded();
        let inode = self.inode_to_change(&file)?;
        self.transact_for_space(CREDITS + inode.xattr_credits(), |handle| {
            self.strip(handle, &inode, keep)
        })?;
        Ok(true)
    }

    /// Frees the blocks past a file's end that a failed write has allocated. No other thread may be using the content.
    pub(super) fn cut_orphan(&self, file: &Locked<'_>, state: &WriteState) -> Result<()> {
        if state.is_orphan() {
            let inode = file.inode()?;
            if inode.stat().links > 0 {
                self.finish_truncation(&inode, false)?;
                state.inode.pending.forget();
                state.set_orphan(false);
            }
        }
        Ok(())
    }
}

/// Returns the blocks that parts of writes cover, and the pieces of the parts in these blocks. If a range begins or ends within a block,
/// `fill` is called with the range of the other bytes of this block. If `fill` returns false, the block is skipped.
fn filled_blocks(
    size: BlockSize,
    written: &[Written],
    mut fill: impl FnMut(&Range<u64>) -> bool,
) -> (Vec<Range<FileBlock>>, Vec<Written>) {
    let block = size.bytes() as u64;
    let (mut blocks, mut kept) = (Vec::<Range<FileBlock>>::new(), Vec::new());
    // `full` is the end of the bytes that are covered so far. If the last block was skipped, `left` is the start of this block.
    let (mut full, mut left) = (0, None);
    for (at, part) in written.iter().enumerate() {
        let range = part.range();
        let next = written.get(at + 1).map_or(u64::MAX, |next| next.pos.0);
        let (start, end) = (range.start / block * block, range.end.next_multiple_of(block));
        let (head, tail) = (start.max(full)..range.start, range.end..end.min(next));
        let fills_head = left != Some(start) && fill(&head);
        let fills_tail = (fills_head || end - start > block) && fill(&tail);
        full = end.min(next);
        left = (!fills_tail).then(|| end - block);
        let first = if fills_head { start } else { start + block };
        let behind = if fills_tail { end } else { end - block };
        if first < behind {
            kept.extend(part.cut(first..behind));
            let range = size.block_of(FilePos(first))..size.block_of(FilePos(behind));
            match blocks.last_mut() {
                Some(last) if last.end >= range.start => last.end = range.end,
                _ => blocks.push(range),
            }
        }
    }
    (blocks, kept)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::device::Ram;
    use crate::dio::DioFlags;
    use crate::fs::ext4::{MkfsOptions, ROOT};
    use crate::fs::{Clock, Credentials, Fallocate, NewFile};
    use crate::{File, FileOptions, Queue, QueueOptions, Volume};

    const LEN: u64 = 64 << 10;

    fn volume() -> (Volume, Queue) {
        let ram = Arc::new(Ram::new(8 << 20));
        crate::tools::make(&*ram, &MkfsOptions::default()).unwrap();
        let volume = Volume::writable_on(ram, Clock::default()).unwrap();
        let queue = volume.queue(&QueueOptions::default()).unwrap();
        (volume, queue)
    }

    /// A new file with unwritten blocks.
    fn file(volume: &Volume, name: &[u8]) -> File {
        let (fs, who) = (volume.fs(), Credentials::default());
        let number =
            fs.writable().unwrap().create(ROOT, name, NewFile::Regular, 0o644, &who).unwrap();
        let how = Fallocate::Allocate { keep_size: false };
        fs.writable().unwrap().fallocate(number, how, FilePos(0), LEN).unwrap();
        volume.open_inode(fs.inode(number).unwrap(), FileOptions::new().write(true)).unwrap()
    }

    /// The conversion looks up the ranges to convert. Before the conversion continues, another thread may free the file and reuse its inode
    /// number. The conversion must not change the unwritten blocks of the new file.
    #[test]
    fn a_conversion_is_that_of_the_file_that_was_written() {
        let (volume, mut queue) = volume();
        let one = file(&volume, b"one");
        one.write_at(&mut queue, &[0x22; 4096], FilePos(0)).unwrap();
        let unconverted = volume.ext4().unwrap().writing().unwrap().locks.unsettled();
        assert_eq!(unconverted.len(), 1);
        volume.fs().writable().unwrap().unlink(ROOT, b"one").unwrap();
        drop(one);
        let two = file(&volume, b"two");
        for (number, open) in unconverted {
            assert_eq!(number, two.inode(), "the inode number is reused");
            volume.ext4().unwrap().convert(number, &open, Patience::All).unwrap();
        }
        let kinds: Vec<_> = two.mappings().map(|iomap| iomap.unwrap().kind).collect();
        assert_eq!(kinds, [IomapType::Unwritten]);
    }

    /// There is too little space for all data of both writes. The write with `WHOLE` fails and leaves the file unchanged. The write without
    /// `WHOLE` writes only a part of the data.
    #[test]
    fn a_write_that_is_wanted_whole_is_not_cut() {
        const ROOM: u64 = 64 << 10;
        let (volume, mut queue) = volume();
        let (fs, who) = (volume.fs(), Credentials::default());
        let make = |name| {
            fs.writable().unwrap().create(ROOT, name, NewFile::Regular, 0o644, &who).unwrap()
        };
        let file =
            volume.open_inode(fs.inode(make(b"file")).unwrap(), FileOptions::new().write(true));
        let (file, filler) = (file.unwrap(), make(b"filler"));
        file.write_at(&mut queue, &[0x11; 4096], FilePos(0)).unwrap();
        // The file `filler` takes all free space. It is then shortened by `ROOM` bytes, which become free.
        let how = Fallocate::Allocate { keep_size: false };
        fs.writable().unwrap().fallocate(filler, how, FilePos(0), 1 << 30).unwrap_err();
        fs.writable().unwrap().truncate(filler, fs.inode(filler).unwrap().size() - ROOM).unwrap();
        fs.sync().unwrap();
        let bytes = vec![0x22; 1 << 20];
        // An unaligned write uses a different code path.
        for pos in [1, 4097] {
            let written = file.write_at_with(&mut queue, &bytes, FilePos(pos), DioFlags::WHOLE);
            assert_eq!(written.unwrap_err().kind(), ErrorKind::NoSpace);
            let mut held = [0; 4096];
            file.read_at(&mut queue, &mut held, FilePos(0)).unwrap();
            assert_eq!((file.size(), held), (4096, [0x11; 4096]));
        }
        let mut write = |flags| file.write_at_with(&mut queue, &bytes, FilePos(4096), flags);
        assert_eq!(write(DioFlags::WHOLE).unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(file.size(), 4096);
        let written = write(DioFlags::empty()).unwrap();
        assert!(written > 0 && written as u64 <= ROOM && file.size() == 4096 + written as u64);
    }

    /// The block map changes while a thread waits for access to the file's content. After the wait, the thread must not use the mapping
    /// from before the wait.
    #[test]
    fn a_thread_that_enters_after_a_change_sees_it() {
        let (volume, _queue) = volume();
        let (file, fs) = (file(&volume, b"file"), volume.ext4().unwrap());
        let open = fs.writing().unwrap().locks.open(file.inode()).unwrap();
        for round in 0..500 {
            let ((tell, told), open) = (mpsc::channel(), Arc::clone(&open));
            let wait = move || {
                let before = open.changes();
                tell.send(()).unwrap();
                let _alone = Alone::wait_surely(&open, 0..LEN).unwrap();
                open.changes() != before
            };
            let waiter = fs.operate(|op| {
                let _file = op.quiesce(file.inode())?;
                let waiter = std::thread::spawn(wait);
                told.recv().unwrap();
                Ok(waiter)
            });
            let waiter = waiter.unwrap();
            assert!(waiter.join().unwrap(), "round {round}");
        }
    }

    /// A write with NOWAIT does not wait for the inode's lock.
    #[test]
    fn nowait_does_not_wait_for_the_inode() {
        let (volume, mut queue) = volume();
        let file = file(&volume, b"file");
        let fs = volume.ext4().unwrap();
        let mut write = |flags| file.write_at_with(&mut queue, &[0x22; 4096], FilePos(0), flags);
        write(DioFlags::empty()).unwrap();
        fs.writing().unwrap().locks.open(file.inode()).unwrap().changed();
        let refused = fs.operate(|op| {
            let _file = op.lock(file.inode());
            write(DioFlags::NOWAIT)
        });
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::WouldBlock);
        write(DioFlags::NOWAIT).unwrap();
    }
}
