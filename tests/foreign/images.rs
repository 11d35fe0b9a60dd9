//! The images, and the threads that process them.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::common::command::run;
use crate::common::image::{Image, scratch_in};
use crate::watch::Watch;

pub(crate) const VARIABLE: &str = "IRONMAP_FOREIGN_IMAGES";
/// The time limit for one step with one image. Most steps take some milliseconds; the limit also suffices on a slow and busy machine.
const TIME: Duration = Duration::from_secs(180);
/// The minimum number of images. If there are fewer images, the package is incomplete.
const LEAST: usize = 150;

/// An image from the package.
pub(crate) struct Foreign {
    /// The name of the e2fsprogs test that uses the image.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

impl Foreign {
    /// A copy in memory that may be changed.
    pub(crate) fn copy(&self) -> Image {
        let image = Image::within(scratch_in(Path::new("/dev/shm")));
        let args = ["--sparse=always".into(), self.path.clone(), image.path()];
        run("cp", &args);
        image
    }
}

/// All images. If `IRONMAP_FOREIGN` is set, only the images whose names contain its value.
fn all() -> Vec<Foreign> {
    let dir = std::env::var_os(VARIABLE).expect("the directory of the images");
    let entries = fs::read_dir(dir).expect("the images").map(|entry| entry.unwrap().path());
    let named = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.to_owned();
        Some(Foreign { name, path })
    };
    let mut images: Vec<_> = entries.filter_map(named).collect();
    assert!(images.len() >= LEAST, "{} images", images.len());
    images.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let chosen = std::env::var("IRONMAP_FOREIGN").unwrap_or_default();
    images.retain(|image| image.name.contains(&chosen));
    images
}

/// The current step of the test with one image, and the failures of its steps. The watch thread reads the current step, and ends the test
/// if the step takes too long.
pub(crate) struct Steps<'a> {
    watch: &'a Watch,
    image: &'a str,
    current: String,
    pub(crate) failures: Vec<String>,
}

impl Steps<'_> {
    pub(crate) fn begin(&mut self, step: &str) {
        self.current = format!("{}: {step}", self.image);
        self.watch.next(self.current.clone());
    }

    /// Records a failure of the current step.
    pub(crate) fn wrong(&mut self, what: &str) {
        self.failures.push(format!("{}: {what}", self.current));
    }
}

/// Runs `work` on every image, with one thread for each processor. At the end, fails the test if an image has failed, and prints all
/// failures.
pub(crate) fn each(test: &str, work: impl Fn(&Foreign, &mut Steps<'_>) + Sync) {
    let (images, next, failures) = (all(), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let watch = Watch::bounded(test, TIME);
                while let Some(image) = images.get(next.fetch_add(1, Relaxed)) {
                    let (current, failed) = (String::new(), Vec::new());
                    let mut steps =
                        Steps { watch: &watch, image: &image.name, current, failures: failed };
                    // The panic has already printed its message, so only the failure is recorded here.
                    if catch_unwind(AssertUnwindSafe(|| work(image, &mut steps))).is_err() {
                        steps.wrong("a panic");
                    }
                    failures.lock().unwrap().append(&mut steps.failures);
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
