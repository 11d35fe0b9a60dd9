//! The progress of a copy: the copied files and bytes, and the totals.
//!
//! A thread counts the files during the copy. The totals become known when this thread has counted all files.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use ironmap::fs::FileType;

use crate::context::Context;
use crate::stop::Stop;

/// A number of files, and the sum of their sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// The number of files, without directories.
    pub files: u64,
    /// The sum of the sizes of these files, in bytes.
    pub bytes: u64,
}

impl Total {
    /// Adds a name and the size of the content to copy. Directories are not counted.
    pub fn add(&mut self, kind: FileType, size: u64) {
        self.files += u64::from(kind != FileType::Directory);
        self.bytes = self.bytes.saturating_add(content(kind, size));
    }
}

/// The size of a file's content. Only regular files have content.
fn content(kind: FileType, size: u64) -> u64 {
    if kind == FileType::Regular { size } else { 0 }
}

/// Shows the progress of a copy. Two threads call the methods: the copying thread and the counting thread.
pub trait Bar: Send + Sync {
    /// Called when the copy of a file begins.
    fn begin(&self, name: &str);
    /// Called after progress: `bytes` were copied since the last call.
    fn advance(&self, bytes: u64);
    /// Called when the copy of a file has ended.
    fn add_file(&self);
    /// Called when the totals are known.
    fn set_total(&self, total: Total);
    /// Called when the whole copy has ended.
    fn finish(&self);
    /// Whether a thread is to count the files to copy, so that [`set_total`](Self::set_total) is called.
    fn wants_total(&self) -> bool {
        true
    }
}

/// The progress of one copy.
pub struct Progress {
    bar: Option<Arc<dyn Bar>>,
    stop: Stop,
    /// The number of remaining bytes of the file being copied.
    left: Cell<Option<u64>>,
    counter: Option<Counter>,
}

/// The counting thread.
struct Counter {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Progress {
    /// Creates a progress that is not shown.
    pub(crate) fn hidden() -> Self {
        Self { bar: None, stop: Stop::default(), left: Cell::new(None), counter: None }
    }

    /// Shows the progress of a copy whose totals are not known.
    pub fn shown(context: &Context) -> Self {
        let (bar, stop) = (context.caller.show_progress(), context.stop().clone());
        Self { bar, stop, left: Cell::new(None), counter: None }
    }

    /// Sets the totals to show.
    pub fn set_total(&self, total: Total) {
        if let Some(bar) = &self.bar {
            bar.set_total(total);
        }
    }

    /// If the totals are shown, runs `count` in a thread. The argument of `count` returns whether to stop. `count` returns `None` if the
    /// totals cannot be determined.
    pub(crate) fn count(
        &mut self,
        count: impl FnOnce(&dyn Fn() -> bool) -> Option<Total> + Send + 'static,
    ) {
        let Some(bar) = self.bar.clone().filter(|bar| bar.wants_total()) else { return };
        let stop = Arc::new(AtomicBool::new(false));
        let (signal, stops) = (self.stop.clone(), Arc::clone(&stop));
        let work = move || {
            let stopped = || stops.load(Ordering::Relaxed) || signal.is_set();
            if let Some(total) = count(&stopped) {
                bar.set_total(total);
            }
        };
        // If the thread cannot be started, no totals are shown.
        let thread = thread::Builder::new().spawn(work).ok();
        self.counter = thread.map(|thread| Counter { stop, thread });
    }

    /// Whether the progress display shows the totals.
    pub(crate) fn wants_total(&self) -> bool {
        self.bar.as_ref().is_some_and(|bar| bar.wants_total())
    }

    /// Called when the copy of a file begins.
    pub fn begin(&self, name: &str, kind: FileType, size: u64) {
        if let Some(bar) = &self.bar {
            bar.begin(name);
        }
        self.left.set((kind != FileType::Directory).then(|| content(kind, size)));
    }

    /// Called when this number of bytes of the file were copied or skipped as a hole.
    pub fn advance(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.advance(bytes);
        }
        self.left.set(self.left.get().map(|left| left.saturating_sub(bytes)));
    }

    /// Called for a further name of a copied file. No content is copied for this name.
    pub(crate) fn begin_link(&self) {
        self.left.set(Some(0));
    }

    /// Called when the copy of a file has ended. Bytes that were not copied count as done, because they are in a hole or were skipped.
    pub(crate) fn end(&self) {
        if let (Some(left), Some(bar)) = (self.left.take(), &self.bar) {
            bar.add_file();
            bar.advance(left);
        }
    }

    /// Ends the progress display, and the counting thread, which reads the volume. The volume can be closed only after this call.
    pub(crate) fn finish(&mut self) {
        if let Some(Counter { stop, thread }) = self.counter.take() {
            stop.store(true, Ordering::Relaxed);
            // If the thread has panicked, the totals stay unknown.
            let _ = thread.join();
        }
        if let Some(bar) = self.bar.take() {
            bar.finish();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
