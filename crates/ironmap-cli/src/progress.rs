//! The progress of a copy: files, bytes, rate and remaining time, on standard error if that is a terminal.
//!
//! A thread counts the files during the copy. The totals appear when the thread has counted all of them.

use std::cell::Cell;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use indicatif::{HumanCount, ProgressBar, ProgressState, ProgressStyle};
use ironmap::fs::FileType;

use crate::interrupt;
use crate::terminal;

/// A number of files, and the sum of their sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    files: u64,
    bytes: u64,
}

impl Total {
    /// Adds a name and the content that is copied for it. Directories are not counted.
    pub(crate) fn add(&mut self, kind: FileType, size: u64) {
        self.files += u64::from(kind != FileType::Directory);
        self.bytes = self.bytes.saturating_add(content(kind, size));
    }
}

/// The number of content bytes; only regular files have content.
fn content(kind: FileType, size: u64) -> u64 {
    if kind == FileType::Regular { size } else { 0 }
}

/// The progress of one command.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// The number of finished files.
    files: Arc<AtomicU64>,
    /// The remaining bytes of the current file.
    left: Cell<Option<u64>>,
    counter: Option<Counter>,
}

/// The thread that counts.
struct Counter {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Progress {
    /// A progress that shows nothing.
    pub(crate) fn hidden() -> Self {
        Self::on(ProgressBar::hidden())
    }

    /// The progress of a copy whose totals are unknown.
    pub(crate) fn of_copy() -> Self {
        let progress = Self::on(ProgressBar::new_spinner());
        let done = files(&progress.files, None);
        let template = "{spinner} {files}, {bytes} {binary_bytes_per_sec} {wide_msg}";
        progress.bar.set_style(style(template, done));
        progress
    }

    fn on(bar: ProgressBar) -> Self {
        Self { bar, files: Arc::default(), left: Cell::new(None), counter: None }
    }

    /// Sets the totals to show.
    pub(crate) fn set_total(&self, total: Total) {
        show_total(&self.bar, &self.files, total);
    }

    /// Starts a thread that counts, and gets a flag to stop. It returns `None` if the totals cannot be known. A hidden progress counts nothing.
    pub(crate) fn count(
        &mut self,
        count: impl FnOnce(&dyn Fn() -> bool) -> Option<Total> + Send + 'static,
    ) {
        if self.bar.is_hidden() {
            return;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (bar, files, stops) = (self.bar.clone(), Arc::clone(&self.files), Arc::clone(&stop));
        let work = move || {
            let stopped = || stops.load(Ordering::Relaxed) || interrupt::caught();
            if let Some(total) = count(&stopped) {
                show_total(&bar, &files, total);
            }
        };
        // If no thread can be started, the totals stay unknown.
        let thread = thread::Builder::new().spawn(work).ok();
        self.counter = thread.map(|thread| Counter { stop, thread });
    }

    /// Whether the progress is hidden.
    pub(crate) fn is_hidden(&self) -> bool {
        self.bar.is_hidden()
    }

    /// Begins the copy of a file.
    pub(crate) fn begin(&self, name: &str, kind: FileType, size: u64) {
        if !self.is_hidden() {
            self.bar.set_message(terminal::name(name.as_bytes()));
        }
        self.left.set((kind != FileType::Directory).then(|| content(kind, size)));
    }

    /// Counts bytes of the current file that were copied, or that are a hole.
    pub(crate) fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
        self.left.set(self.left.get().map(|left| left.saturating_sub(bytes)));
    }

    /// Begins a further name of a copied file, which has no content to copy.
    pub(crate) fn begin_link(&self) {
        self.left.set(Some(0));
    }

    /// Ends the current file. The remainder of its size is a hole, or was left out.
    pub(crate) fn end(&self) {
        if let Some(left) = self.left.take() {
            self.files.fetch_add(1, Ordering::Relaxed);
            self.bar.inc(left);
        }
    }

    /// Runs `print` with the bar out of the way.
    pub(crate) fn suspend<R>(&self, print: impl FnOnce() -> R) -> R {
        self.bar.suspend(print)
    }

    /// Ends the progress, and hides it. The counting thread, which reads the volume, has ended after this, so the volume can be closed.
    pub(crate) fn finish(&mut self) {
        if let Some(Counter { stop, thread }) = self.counter.take() {
            stop.store(true, Ordering::Relaxed);
            // If the thread has panicked, the totals are unknown.
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

fn show_total(bar: &ProgressBar, done: &Arc<AtomicU64>, total: Total) {
    bar.set_length(total.bytes);
    let template =
        "{bar:20} {files}, {bytes}/{total_bytes} {binary_bytes_per_sec} {eta} left {wide_msg}";
    bar.set_style(style(template, files(done, Some(total.files))));
}

fn style(template: &str, files: impl Files) -> ProgressStyle {
    let style = ProgressStyle::with_template(template);
    style.unwrap_or_else(|_| ProgressStyle::default_bar()).with_key("files", files)
}

/// Writes the number of files.
trait Files: Fn(&ProgressState, &mut dyn Write) + Clone + Send + Sync + 'static {}

impl<F: Fn(&ProgressState, &mut dyn Write) + Clone + Send + Sync + 'static> Files for F {}

fn files(done: &Arc<AtomicU64>, total: Option<u64>) -> impl Files {
    let done = Arc::clone(done);
    move |_: &ProgressState, out: &mut dyn Write| {
        let done = HumanCount(done.load(Ordering::Relaxed));
        // Formatting into a string does not fail.
        let _ = match total {
            Some(total) => write!(out, "{done}/{} files", HumanCount(total)),
            None => write!(out, "{done} files"),
        };
    }
}
