//! Prints the messages of a job on standard error and standard output. If standard error is a terminal, shows the progress of a copy below
//! the messages.

use std::fmt::Write;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use indicatif::{HumanCount, ProgressBar, ProgressState, ProgressStyle};
use ironmap_image::context::Caller;
use ironmap_image::progress::{Bar, Total};
use ironmap_image::quote;

use crate::failure::print;
use crate::interrupt;
use crate::terminal::{one_line, print_line};

/// Prints the messages of a job, and shows its progress.
pub(crate) struct Console {
    /// The bar of the last copy. Lines are printed above it.
    bar: Mutex<ProgressBar>,
}

impl Console {
    pub(crate) fn new() -> Self {
        Self { bar: Mutex::new(ProgressBar::hidden()) }
    }

    fn above_bar<R>(&self, print: impl FnOnce() -> R) -> R {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner).suspend(print)
    }
}

impl Caller for Console {
    fn print(&self, message: &str) {
        self.above_bar(|| print(message));
    }

    fn say(&self, message: &str) -> io::Result<()> {
        self.above_bar(|| print_line(one_line(message)))
    }

    fn show_progress(&self) -> Option<Arc<dyn Bar>> {
        let bar = CopyBar { bar: ProgressBar::new_spinner(), files: Arc::default() };
        if bar.bar.is_hidden() {
            return None;
        }
        let template = "{spinner} {files}, {bytes} {binary_bytes_per_sec} {wide_msg}";
        bar.bar.set_style(style(template, files(&bar.files, None)));
        *self.bar.lock().unwrap_or_else(PoisonError::into_inner) = bar.bar.clone();
        Some(Arc::new(bar))
    }

    fn catch_signals(&self) {
        interrupt::catch();
    }
}

/// Shows files, bytes, rate and remaining time.
struct CopyBar {
    bar: ProgressBar,
    /// The number of files that were copied.
    files: Arc<AtomicU64>,
}

impl Bar for CopyBar {
    fn begin(&self, name: &str) {
        self.bar.set_message(quote::name(name.as_bytes()));
    }

    fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn add_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    fn set_total(&self, total: Total) {
        self.bar.set_length(total.bytes);
        let template =
            "{bar:20} {files}, {bytes}/{total_bytes} {binary_bytes_per_sec} {eta} left {wide_msg}";
        self.bar.set_style(style(template, files(&self.files, Some(total.files))));
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str, files: impl Files) -> ProgressStyle {
    let style = ProgressStyle::with_template(template);
    style.unwrap_or_else(|_| ProgressStyle::default_bar()).with_key("files", files)
}

/// A function that writes the number of copied files.
trait Files: Fn(&ProgressState, &mut dyn Write) + Clone + Send + Sync + 'static {}

impl<F: Fn(&ProgressState, &mut dyn Write) + Clone + Send + Sync + 'static> Files for F {}

fn files(done: &Arc<AtomicU64>, total: Option<u64>) -> impl Files {
    let done = Arc::clone(done);
    move |_: &ProgressState, out: &mut dyn Write| {
        let done = HumanCount(done.load(Ordering::Relaxed));
        // The formatting of text cannot fail.
        let _ = match total {
            Some(total) => write!(out, "{done}/{} files", HumanCount(total)),
            None => write!(out, "{done} files"),
        };
    }
}
