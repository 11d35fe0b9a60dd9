//! The progress of a copy: files and bytes that are done, and totals.
//!
//! A thread counts the files while they are copied. The totals are known when it has counted all of them.

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
    /// Files; directories are not counted.
    pub files: u64,
    /// Bytes of their content.
    pub bytes: u64,
}

impl Total {
    /// Adds a name and the content that is copied for it. Directories are not counted.
    pub fn add(&mut self, kind: FileType, size: u64) {
        self.files += u64::from(kind != FileType::Directory);
        self.bytes = self.bytes.saturating_add(content(kind, size));
    }
}

/// The size of a file's content; only regular files have any.
fn content(kind: FileType, size: u64) -> u64 {
    if kind == FileType::Regular { size } else { 0 }
}

/// Shows the progress of a copy. Two threads call it: the one that copies, and the one that counts.
pub trait Bar: Send + Sync {
    /// The copy of a file begins.
    fn begin(&self, name: &str);
    /// So many more bytes are done.
    fn advance(&self, bytes: u64);
    /// One more file is done.
    fn add_file(&self);
    /// The totals are known.
    fn set_total(&self, total: Total);
    /// The copy has ended.
    fn finish(&self);
}

/// The progress of one copy.
pub struct Progress {
    bar: Option<Arc<dyn Bar>>,
    stop: Stop,
    /// The content that is left of the file that is being copied.
    left: Cell<Option<u64>>,
    counter: Option<Counter>,
}

/// The thread that counts.
struct Counter {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Progress {
    /// Shows nothing.
    pub(crate) fn hidden() -> Self {
        Self { bar: None, stop: Stop::default(), left: Cell::new(None), counter: None }
    }

    /// Of a copy whose totals are not known.
    pub fn shown(context: &Context) -> Self {
        let (bar, stop) = (context.caller.show_progress(), context.stop().clone());
        Self { bar, stop, left: Cell::new(None), counter: None }
    }

    /// Shows these totals from now on.
    pub fn set_total(&self, total: Total) {
        if let Some(bar) = &self.bar {
            bar.set_total(total);
        }
    }

    /// Has a thread count, which is told when to stop; `None` if the totals cannot be known. Nothing is counted if nothing is shown.
    pub(crate) fn count(
        &mut self,
        count: impl FnOnce(&dyn Fn() -> bool) -> Option<Total> + Send + 'static,
    ) {
        let Some(bar) = self.bar.clone() else { return };
        let stop = Arc::new(AtomicBool::new(false));
        let (signal, stops) = (self.stop.clone(), Arc::clone(&stop));
        let work = move || {
            let stopped = || stops.load(Ordering::Relaxed) || signal.is_set();
            if let Some(total) = count(&stopped) {
                bar.set_total(total);
            }
        };
        // Without a thread there are no totals.
        let thread = thread::Builder::new().spawn(work).ok();
        self.counter = thread.map(|thread| Counter { stop, thread });
    }

    /// Whether nothing is shown.
    pub(crate) fn is_hidden(&self) -> bool {
        self.bar.is_none()
    }

    /// The copy of a file begins.
    pub fn begin(&self, name: &str, kind: FileType, size: u64) {
        if let Some(bar) = &self.bar {
            bar.begin(name);
        }
        self.left.set((kind != FileType::Directory).then(|| content(kind, size)));
    }

    /// So many bytes of it were copied, or are a hole.
    pub fn advance(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.advance(bytes);
        }
        self.left.set(self.left.get().map(|left| left.saturating_sub(bytes)));
    }

    /// A further name of a file that was copied begins: no content is copied for it.
    pub(crate) fn begin_link(&self) {
        self.left.set(Some(0));
    }

    /// The file is done. The rest of its size that was not copied is a hole, or was left out.
    pub(crate) fn end(&self) {
        if let (Some(left), Some(bar)) = (self.left.take(), &self.bar) {
            bar.add_file();
            bar.advance(left);
        }
    }

    /// The copy has ended, and nothing is shown any more. A volume can be closed after this: the thread that reads it has ended.
    pub(crate) fn finish(&mut self) {
        if let Some(Counter { stop, thread }) = self.counter.take() {
            stop.store(true, Ordering::Relaxed);
            // If it has panicked, there were no totals.
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
