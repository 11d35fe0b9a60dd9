//! `ironmap clone`: copies all bytes of one location to another location, except holes.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::{panic, thread};

use clap::ArgAction;
use ironmap::device::Device;
use ironmap::fs::FileType;
use ironmap::location::{LocationOptions, Medium, OpenLocation, Site};
use ironmap::units::DevOffset;
use ironmap::{Buffer, Engine, Errno, Error, Location, probe};
use ironmap_image::progress::{Progress, Total};
use ironmap_image::room::{self, Format, Room};
use ironmap_image::spared::Spared;
use ironmap_image::{Failure, Report};

use crate::compress::Method;
use crate::failure::{FORCED, hint_at, overwrite};
use crate::interrupt;
use crate::target;

/// The length of a request in bytes.
const CHUNK: u64 = 1 << 20;
/// The number of threads. Each thread has one request in flight. With a latency of 20 ms, eight requests of 1 MiB reach 400 MiB/s.
const WORKERS: usize = 8;
/// Zeros are detected in pieces of this length in bytes. The length is a multiple of the request unit of every device.
const GRAIN: usize = 64 << 10;
/// A block of zeros, with which each part of the data is compared.
static ZEROS: [u8; 4096] = [0; 4096];

/// Copies a device, image or export, or a part of one, to another device, image or export
///
/// Zeros are neither transferred nor written: holes of images, ranges without data in an NBD export or a qcow2 image, and zeros in the
/// data. A missing TARGET is made: qcow2:FILE as a qcow2 image, another name as a raw image with holes. If TARGET is larger than SOURCE, the remaining part of TARGET is not changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap clone disk.img nbd://server/export
  ironmap clone 'nbd+unix:///rbd?socket=/run/nbd.sock' backup.img
  ironmap clone qcow2:guest.qcow2@p2 root.img
  ironmap clone --compress zstd disk.img qcow2:small.qcow2")]
pub(crate) struct Args {
    /// Overwrite a file system or a partition table; -F -F also overwrites a member of an MD array or of an LVM volume group
    #[arg(short = 'F', long, action = ArgAction::Count)]
    force: u8,
    /// Make TARGET, a new qcow2 image, with compressed clusters
    #[arg(long, value_name = "METHOD", value_enum)]
    compress: Option<Method>,
    /// The source: a block device, an image, nbd://HOST/EXPORT, qcow2:IMAGE, or a part of one
    #[arg(value_name = "SOURCE", value_parser = target::volume())]
    source: Location,
    /// The destination, at least as large as the source
    #[arg(value_name = "TARGET", value_parser = target::volume())]
    target: Location,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    interrupt::catch();
    refuse_own(args, report)?;
    refuse_unlikely(&args.target)?;
    let how = LocationOptions::new().engine(Engine::Auto);
    let source =
        report.context().open_device(&args.source, &how).map_err(|error| Failure::open(&error))?;
    room::refuse_name(&args.target, probe(&*source.device), args.force > 0)?;
    let held = report.context().hold(&args.target);
    let _held = held.map_err(|error| Failure::open(&error))?;
    let made = copy_all(args, &source, report);
    report.context().end_aside(made)
}

/// Makes the target if it is missing, and copies the source.
fn copy_all(args: &Args, source: &OpenLocation, report: &Report) -> Result<(), Failure> {
    let size = source.device.size();
    let room = make_room(args, size, report)?;
    let target = match open_target(args, size, report) {
        Ok(target) => target,
        Err(failure) => {
            room.undo();
            return Err(failure);
        }
    };
    for notice in source.notices.iter().chain(&target.notices) {
        report.warning(notice);
    }
    // Ranges of the target that already read as zeros are not written. The flush makes these zeros durable. Without it, a crash of the
    // server could restore old data.
    target.device.flush().map_err(|error| Failure::at(&args.target, &error))?;
    let progress = Progress::shown(report.context());
    let mut total = Total::default();
    total.add(FileType::Regular, size);
    progress.set_total(total);
    progress.begin(&args.source.to_string(), FileType::Regular, size);
    let copy = Copy {
        args,
        source: &*source.device,
        target: &*target.device,
        unit: u64::from(target.device.limits().logical_block),
        align: align(args, &*target.device),
        zeros: Buffer::aligned(CHUNK as usize).map_err(|error| Failure::new(error.to_string()))?,
        next: Mutex::new(Next { at: 0, data: 0..0 }),
        blank: Mutex::new(0..0),
        failed: Mutex::new(None),
        stops: AtomicBool::new(false),
    };
    let copied = copy.run(&progress);
    drop(progress);
    interrupt::check()?;
    copied?;
    target.device.flush().map_err(|error| Failure::at(&args.target, &error))?;
    if let Some(integrity) = target.integrity {
        integrity.device.close().map_err(|error| Failure::at(&args.target, &error))?;
    }
    room.keep()
}

/// Makes a file for the target if it is missing. A compressed image must be new.
fn make_room(args: &Args, size: u64, report: &Report) -> Result<Room, Failure> {
    let Some((path, mut format)) = room::file_of(&args.target) else {
        return match args.compress {
            Some(_) => Err(room::not_compressed(&args.target)),
            None => Ok(Room::Old),
        };
    };
    if let Some(method) = args.compress {
        if format == Format::Raw || path.exists() {
            return Err(room::not_compressed(&args.target));
        }
        format = Format::Qcow2(method.into());
    }
    // The size of an image is a multiple of the sector size.
    let size = size.next_multiple_of(512);
    let made =
        room::make(&args.target, (path, format), size, overwrite(args.force), report.context());
    made.map_err(hint_at(FORCED))
}

/// The alignment of the parts of a copy.
fn align(args: &Args, target: &dyn Device) -> u64 {
    let unit = u64::from(target.limits().logical_block);
    if args.compress.is_some() { unit.max(GRAIN as u64) } else { unit }
}

/// Refuses a target that is the source, or a file in which the source is stored.
fn refuse_own(args: &Args, report: &Report) -> Result<(), Failure> {
    let spared = Spared::of(&args.source, report.context());
    let is_own = |site: &Site| {
        let path = match &site.medium {
            Medium::File(path) => Some(path),
            Medium::Image(address) => Some(&address.path),
            _ => None,
        };
        path.is_some_and(|path| spared.has(path)) || args.source.data().shares_device(site)
    };
    let sites = [Some(args.target.data()), args.target.tags()];
    if sites.into_iter().flatten().any(is_own) {
        let what = format!("{}: the target is on the device or image that is copied", args.target);
        return Err(Failure::usage(what));
    }
    Ok(())
}

/// Refuses to create a file whose name is `-` or has a prefix such as `ssh:`. The user probably means a stream or an address, not a file.
fn refuse_unlikely(target: &Location) -> Result<(), Failure> {
    let Some(path) = target.whole_file().filter(|path| !path.exists()) else { return Ok(()) };
    let name = path.to_string_lossy();
    let prefix = name.split_once(':').filter(|(prefix, _)| !prefix.contains('/'));
    if name != "-" && prefix.is_none() {
        return Ok(());
    }
    let what = "the name is not a known address or image; to create a file with this name, write";
    Err(Failure::usage(format!("{name}: {what} ./{name}")))
}

fn open_target(args: &Args, size: u64, report: &Report) -> Result<OpenLocation, Failure> {
    let how = LocationOptions::new().engine(Engine::Auto).write(true);
    let how = how.compress(args.compress.is_some());
    let opened = report.context().open_device(&args.target, &how);
    let opened = opened.map_err(|error| Failure::open(&room::missing(&args.target, error)))?;
    let device = &*opened.device;
    let unit = u64::from(device.limits().logical_block);
    if device.size() < size.next_multiple_of(unit) {
        let sizes = format!("has {} bytes, but {} needs {size}", device.size(), args.source);
        return Err(Failure::new(format!("{}: {sizes}", args.target)));
    }
    room::check(device, &args.target, overwrite(args.force)).map_err(hint_at(FORCED))?;
    Ok(opened)
}

/// The state of a copy, which several threads share.
struct Copy<'a> {
    args: &'a Args,
    source: &'a dyn Device,
    target: &'a dyn Device,
    /// The size of the smallest write in bytes.
    unit: u64,
    /// Parts of the copy begin and end at multiples of this number of bytes, which is a multiple of `unit`. With `--compress`, the parts
    /// consist of whole clusters, because only whole clusters are compressed.
    align: u64,
    zeros: Buffer,
    next: Mutex<Next>,
    /// The last range of zeros that was found in the target. The range stays valid: only this copy writes to the target, and the copy
    /// writes each range once.
    blank: Mutex<Range<u64>>,
    /// The first failure.
    failed: Mutex<Option<Failure>>,
    stops: AtomicBool,
}

/// The next part of the copy.
struct Next {
    at: u64,
    /// The last range of data that was found in the source.
    data: Range<u64>,
}

/// A range of the source. Its start is a multiple of the smallest write (`Copy::unit`). The end of a range of zeros is also such a
/// multiple.
enum Part {
    Data(Range<u64>),
    Zeros(Range<u64>),
}

impl Copy<'_> {
    fn run(&self, progress: &Progress) -> Result<(), Failure> {
        let (sender, done) = channel();
        thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS)
                .map(|_| {
                    let sender = sender.clone();
                    scope.spawn(move || self.work(&sender))
                })
                .collect();
            drop(sender);
            for len in done {
                progress.advance(len);
                self.stops.fetch_or(interrupt::caught(), Ordering::Relaxed);
            }
            for worker in workers {
                worker.join().unwrap_or_else(|payload| panic::resume_unwind(payload));
            }
        });
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        failed.map_or(Ok(()), Err)
    }

    /// Copies parts until no part remains. Sends the length of each part.
    fn work(&self, done: &Sender<u64>) {
        if let Err(failure) = self.copy_parts(done) {
            self.stops.store(true, Ordering::Relaxed);
            // The first failure may have caused the failures of other threads. Only the first failure is kept.
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert(failure);
        }
    }

    fn copy_parts(&self, done: &Sender<u64>) -> Result<(), Failure> {
        let buffer = Buffer::aligned(CHUNK as usize);
        let mut buffer = buffer.map_err(|error| Failure::new(error.to_string()))?;
        while !self.stops.load(Ordering::Relaxed)
            && let Some(part) = self.take()?
        {
            let (Part::Data(range) | Part::Zeros(range)) = &part;
            let len = range.end - range.start;
            match part {
                Part::Data(range) => self.copy(range, &mut buffer)?,
                Part::Zeros(range) => self.zero(range)?,
            }
            // The receiver outlives the workers, so `send` cannot fail.
            let _ = done.send(len);
        }
        Ok(())
    }

    /// Returns the next part of the copy. No other thread gets this part.
    fn take(&self) -> Result<Option<Part>, Failure> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let size = self.source.size();
        if next.at >= size {
            return Ok(None);
        }
        if next.at >= next.data.end {
            let data = self.source.data_from(DevOffset(next.at));
            let data = data.map_err(|error| Failure::at(&self.args.source, &error))?;
            // If a range of data begins or ends between two multiples of `align`, all bytes between these multiples count as data.
            let start = data.start.0.min(size) / self.align * self.align;
            let start = start.max(next.at);
            let end = data.end.0.max(next.at + 1).next_multiple_of(self.align);
            next.data = start..end.min(size).max(start);
        }
        let from = next.at;
        let part = if from < next.data.start {
            next.at = next.data.start;
            Part::Zeros(from..next.at)
        } else {
            let end = (from / CHUNK + 1) * CHUNK;
            next.at = end.min(next.data.end);
            Part::Data(from..next.at)
        };
        Ok(Some(part))
    }

    /// Copies a range of at most one chunk. A piece of `GRAIN` bytes that contains only zeros becomes zeros in the target.
    fn copy(&self, range: Range<u64>, buffer: &mut Buffer) -> Result<(), Failure> {
        let len = (range.end - range.start) as usize;
        let read = self.source.read_exact_at(&mut buffer[..len], DevOffset(range.start));
        read.map_err(|error| Failure::at(&self.args.source, &error))?;
        let whole = len.next_multiple_of(self.unit as usize);
        if whole > len {
            // If the source ends within the last write unit, the rest of this unit keeps the content of the target.
            let rest = self.target.read_exact_at(&mut buffer[len..whole], DevOffset(range.end));
            rest.map_err(|error| self.of_target(&error))?;
        }
        let (mut from, mut end) = (0, GRAIN.min(whole));
        while from < whole {
            let has_data = has_data(&buffer[from..end]);
            while end < whole && self::has_data(&buffer[end..whole.min(end + GRAIN)]) == has_data {
                end = whole.min(end + GRAIN);
            }
            let at = range.start + from as u64;
            if has_data {
                self.write(&buffer[from..end], at)?;
            } else {
                self.zero(at..range.start + end as u64)?;
            }
            (from, end) = (end, whole.min(end + GRAIN));
        }
        Ok(())
    }

    /// Makes a range of the target read as zeros. Parts that already read as zeros are not written.
    fn zero(&self, range: Range<u64>) -> Result<(), Failure> {
        let mut at = range.start;
        while at < range.end && !self.stops.load(Ordering::Relaxed) {
            let blank = self.blank.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if blank.contains(&at) {
                at = blank.end;
                continue;
            }
            let data =
                self.target.data_from(DevOffset(at)).map_err(|error| self.of_target(&error))?;
            let from = (data.start.0 / self.unit * self.unit).max(at);
            *self.blank.lock().unwrap_or_else(PoisonError::into_inner) = at..from;
            if from >= range.end {
                break;
            }
            let end = data.end.0.max(at + 1).next_multiple_of(self.unit).min(range.end);
            at = end.max(from);
            if from >= end {
                continue;
            }
            match self.target.write_zeroes(DevOffset(from), end - from) {
                Err(error) if error.errno() == Errno::EOPNOTSUPP => {
                    self.write_zeros(from..end)?;
                }
                zeroed => zeroed.map_err(|error| self.of_target(&error))?,
            }
        }
        Ok(())
    }

    fn write_zeros(&self, range: Range<u64>) -> Result<(), Failure> {
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(CHUNK);
            self.write(&self.zeros[..len as usize], at)?;
            at += len;
        }
        Ok(())
    }

    fn write(&self, data: &[u8], at: u64) -> Result<(), Failure> {
        let written = self.target.write_all_at(&[IoSlice::new(data)], DevOffset(at), false);
        written.map_err(|error| self.of_target(&error))
    }

    fn of_target(&self, error: &Error) -> Failure {
        Failure::at(&self.args.target, error)
    }
}

fn has_data(bytes: &[u8]) -> bool {
    bytes.chunks(ZEROS.len()).any(|part| part != &ZEROS[..part.len()])
}
