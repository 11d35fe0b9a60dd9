//! Opens volumes and devices with the options that apply to every volume of a job, and prints the faults that the library tolerates.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use ironmap::device::{BlockFile, FileId, OpenMode};
use ironmap::location::{LocationOptions, Medium, OpenLocation, Site};
use ironmap::{Location, Volume, VolumeOptions};

use crate::context::Context;
use crate::failure::Failure;

/// The options that apply to every volume of a job. A job that changes a volume refuses them.
#[derive(Debug, Default)]
pub struct Opening {
    /// Whether `--noload` is given, so that journals are not replayed.
    pub no_load: bool,
    /// The value of `--superblock`.
    pub superblock: Option<u64>,
    /// Whether `--truncated` is given.
    pub truncated: bool,
    /// The value of `--journal`.
    pub journal: Option<Location>,
    /// The value of `--realtime`.
    pub realtime: Option<Location>,
}

/// The locks of a job on a location: see [`Context::hold`].
#[must_use]
pub struct Held(Arc<Context>);

impl Drop for Held {
    fn drop(&mut self) {
        *self.0.held() = None;
    }
}

impl Context {
    /// Whether journals are not replayed.
    pub fn no_load(&self) -> bool {
        self.opening.no_load
    }

    /// Whether the remaining part of a truncated volume is read.
    pub fn is_truncated(&self) -> bool {
        self.opening.truncated
    }

    /// Refuses the options that permit only reads. A caller that changes the volume itself, rather than only files in the volume, must call
    /// this function.
    ///
    /// # Errors
    /// Fails if an option is set that permits only reads.
    pub fn check_changes(&self, location: &Location) -> Result<(), Failure> {
        let Opening { no_load, superblock, truncated, journal, realtime } = &self.opening;
        let what = if *no_load || matches!(location, Location::NoLoad(_)) {
            "--noload and noload:VOLUME permit only reads: a volume without its journal cannot be changed"
        } else if superblock.is_some() || *truncated {
            "with --superblock or --truncated, a volume cannot be changed"
        } else if journal.is_some() {
            "with --journal, a volume cannot be changed"
        } else if realtime.is_some() {
            "with --realtime, a volume cannot be changed"
        } else {
            return Ok(());
        };
        Err(Failure::usage(what))
    }

    /// The devices that `--journal` and `--realtime` name.
    pub(crate) fn further_devices(&self) -> impl Iterator<Item = &Location> {
        self.opening.journal.iter().chain(&self.opening.realtime)
    }

    /// Refuses a realtime device that is the volume itself, or that was given for another volume. The library cannot detect the second
    /// mistake, because a realtime device without realtime groups does not identify its volume.
    fn check_realtime(&self, location: &Location) -> Result<(), Failure> {
        match &self.opening.realtime {
            Some(device) if device == location => {
                Err(Failure::usage(format_args!("--realtime: {location} is the volume itself")))
            }
            Some(_) if self.realtime_of.get_or_init(|| location.clone()) != location => {
                let what = "--realtime: a realtime device belongs to one volume, but the command names several volumes";
                Err(Failure::usage(what))
            }
            _ => Ok(()),
        }
    }

    /// Adds the options that apply to every volume of the job.
    pub fn with_opening(&self, options: VolumeOptions) -> VolumeOptions {
        let Opening { superblock, truncated, journal, realtime, .. } = &self.opening;
        let options = if *truncated { options.truncated(true) } else { options };
        options.superblock(*superblock).journal(journal.clone()).realtime(realtime.clone())
    }

    /// Locks an image file, so that no other program can use it between two steps of a job. The job opens the location several times
    /// without other locks, until the result is dropped. These opens fail if another program has replaced the file. Other locations, and
    /// files that do not exist, are not locked. Each step locks a device itself, because the kernel zeroes blocks only for the holder.
    ///
    /// # Errors
    /// The errors of the library.
    pub fn hold(self: &Arc<Self>, location: &Location) -> ironmap::Result<Held> {
        let file = match location {
            Location::Plain(Site { medium: Medium::File(path), .. }) => Some(&**path),
            _ => location.whole_file(),
        };
        if let Some(path) = file.filter(|path| path.is_file()) {
            let mode = OpenMode { direct: false, write: true, ..OpenMode::default() };
            *self.held() = Some((location.clone(), BlockFile::open(path, &mode)?));
        }
        Ok(Held(Arc::clone(self)))
    }

    /// Returns the file of this location, if the job holds its locks.
    pub(crate) fn held_file(&self, location: &Location) -> Option<FileId> {
        self.held().as_ref().filter(|(held, _)| held == location).map(|(_, file)| file.file_id())
    }

    fn held(&self) -> MutexGuard<'_, Option<(Location, BlockFile)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the device at a location, and prints a note for each fault that the library tolerates. With `--truncated`, a partition may end
    /// past the end of the device if the device is opened only for reading.
    ///
    /// # Errors
    /// The errors of the library.
    pub fn open_device(
        &self,
        location: &Location,
        options: &LocationOptions,
    ) -> ironmap::Result<OpenLocation> {
        let truncated = options.truncated || (self.opening.truncated && !options.write);
        let mut options = options.truncated(truncated);
        options.held = self.held_file(location);
        let opened = self.place_of(location).open(&options)?;
        self.tell_faults(location, &opened.faults);
        Ok(opened)
    }

    /// Prints a note for each tolerated fault of a device. A fault is printed once, even if the job opens the device several times.
    pub fn tell_faults(&self, location: &Location, faults: &[String]) {
        for line in faults.iter().map(|fault| format!("{location}: {fault}")) {
            if self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
                self.note(line);
            }
        }
    }

    /// Opens a volume, and prints the notices for the user.
    pub(crate) fn open_volume(
        &self,
        location: &Location,
        options: VolumeOptions,
    ) -> Result<Volume, Failure> {
        self.check_realtime(location)?;
        let place = self.place_of(location);
        let options = self.with_opening(options).held(self.held_file(location));
        let opened = || self.caller.open(&place, &options);
        let volume = if matches!(location.data().medium, Medium::Nbd(_)) {
            self.announce_if_slow(location, opened)
        } else {
            opened()
        };
        let volume = volume.map_err(|error| Failure::open(&error))?;
        if let Some(integrity) = volume.integrity() {
            let lines = integrity.recovered.notices(volume.fs().is_writable());
            lines.iter().for_each(|line| self.note(format_args!("{location}: {line}")));
        }
        if matches!(location.data().medium, Medium::Image(_)) {
            // A notice can report, for example, that a virtual disk image was not closed.
            volume.notices().iter().for_each(|notice| self.note(notice));
        }
        self.tell_faults(location, volume.faults());
        Ok(volume)
    }

    /// Runs `open`, which opens a volume. If `open` takes longer than two seconds, prints the possible reasons.
    fn announce_if_slow<T>(&self, location: &Location, open: impl FnOnce() -> T) -> T {
        const LONG: Duration = Duration::from_secs(2);
        let (opened, waits) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                if waits.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout) {
                    let why = "the open takes long: multiple mount protection (MMP) checks for other nodes, or the server does not answer";
                    self.note(format_args!("{location}: {why}"));
                }
            });
            let volume = open();
            drop(opened);
            volume
        })
    }
}
