//! Passes a tree from the thread that reads it to the thread that writes the copy, as a sequence of steps such as the beginning of a file
//! or a piece of its content.

use std::mem;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use super::step::{PIECE, Step, Stopped};
use super::writer::Writer;
use crate::failure::Failure;
use crate::report::Report;

/// The limits of a batch for the writer: its number of steps, and its approximate number of bytes.
const BATCH_STEPS: usize = 256;
const BATCH_BYTES: usize = PIECE as usize;
/// The number of batches that may wait in the channel. The reader and the writer each work on one more batch. A batch has at most `2 *
/// PIECE` bytes of content, so the memory is limited.
const BATCHES: usize = 2;
/// The stack size of the reader in bytes. The reader of a tree recurses into directories, and each level needs a few KiB. Memory is used
/// only when a level needs it.
const STACK: usize = 64 << 20;

/// The reader's end of the channel.
pub(super) struct Feed {
    sender: SyncSender<Vec<Step>>,
    batch: Vec<Step>,
    /// The number of bytes of content in the batch.
    bytes: usize,
    no_room: Arc<AtomicBool>,
}

impl Feed {
    pub(super) fn send(&mut self, step: Step) -> Result<(), Stopped> {
        if let Step::Data(_, bytes) = &step {
            self.bytes += bytes.len();
        }
        self.batch.push(step);
        let full = self.batch.len() >= BATCH_STEPS || self.bytes >= BATCH_BYTES;
        if full { self.flush() } else { Ok(()) }
    }

    pub(super) fn flush(&mut self) -> Result<(), Stopped> {
        self.bytes = 0;
        self.sender.send(mem::take(&mut self.batch)).map_err(|_| Stopped)
    }

    /// Whether the writer has ended because the volume has no space.
    pub(super) fn lacks_room(&self) -> bool {
        self.no_room.load(Ordering::Acquire)
    }
}

/// Runs `read` in a thread, writes the steps (files and pieces of content) that `read` sends, and returns its result. `read` must drop the
/// feed after the last step, because the copy ends when the feed is dropped.
pub(super) fn copy<R: Send>(
    writer: &mut Writer,
    report: &mut Report,
    read: impl FnOnce(Feed) -> R + Send,
) -> (Result<(), Failure>, R) {
    thread::scope(|scope| {
        let (sender, batches) = sync_channel(BATCHES);
        let no_room = Arc::new(AtomicBool::new(false));
        let feed = Feed { sender, batch: Vec::new(), bytes: 0, no_room: Arc::clone(&no_room) };
        let reader = thread::Builder::new().stack_size(STACK);
        let reader = match reader.spawn_scoped(scope, move || read(feed)) {
            Ok(reader) => reader,
            Err(error) => panic!("no thread can be started: {error}"),
        };
        let copied = write(&batches, writer, report);
        let lacks_room = copied.as_ref().is_err_and(Failure::is_for_space);
        no_room.store(lacks_room, Ordering::Release);
        // Dropping the receiver of its batches ends the reader.
        drop(batches);
        (copied, reader.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

fn write(
    batches: &Receiver<Vec<Step>>,
    writer: &mut Writer,
    report: &mut Report,
) -> Result<(), Failure> {
    for step in batches.iter().flatten() {
        report.stop().check().inspect_err(|_| writer.abandon(report))?;
        if let Err(failure) = writer.take(step, report) {
            if writer.how().ends.with(&failure) {
                writer.abandon(report);
                return Err(failure);
            }
            report.error(&failure);
        }
    }
    Ok(())
}
