//! Measures the creation, lookup and removal of files, and syncs by many threads. ironmap and the kernel's ext4 take turns on the same
//! device.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use comfy_table::Table;
use ironmap::bio::Buffer;
use ironmap::dio::DioFlags;
use ironmap::fs::{Credentials, FileSystem, Follow, NewFile};
use ironmap::location::Site;
use ironmap::sorting::Sorting;
use ironmap::units::{FilePos, InodeNo};
use ironmap::{FileOptions, Location, QueueOptions, Result, Volume, VolumeOptions};
use rustix::fs::OFlags;

use super::fixture::{FixtureKind, Scratch};
use ironmap_load::errors::{self, go_on};

/// The number of files in a directory.
const DIRECTORY: usize = 1000;
const THREADS: [usize; 3] = [1, 2, 16];
const BLOCK: usize = 4096;
const SYNCS: Duration = Duration::from_millis(500);
const WHO: Credentials = Credentials::new(0, 0, 0);

/// The operations that ironmap and the kernel both run. Two numbers determine the path of a file: the number of its directory, and its own
/// number.
trait Names: Sync {
    fn mkdir(&self, dir: usize) -> Result<()>;
    fn create(&self, dir: usize, file: usize) -> Result<()>;
    fn stat(&self, dir: usize, file: usize) -> Result<()>;
    fn unlink(&self, dir: usize, file: usize) -> Result<()>;
    fn sync(&self) -> Result<()>;
    /// Returns a function that appends a block to the file of `thread` and makes the block durable.
    fn appender(&self, thread: usize, how: Durably) -> Result<Box<dyn FnMut() -> Result<()> + '_>>;
}

/// How an append is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durably {
    /// A write to memory, then an fsync of the data and all metadata.
    Fsync,
    /// A direct write with `O_DSYNC`.
    Dsync,
}

impl Durably {
    const ALL: [(Self, &'static str); 2] =
        [(Self::Fsync, "append 4K and fsync"), (Self::Dsync, "append 4K direct with O_DSYNC")];
}

fn name(number: usize) -> String {
    format!("file-{number:08}")
}

struct Kernel<'a>(&'a Path);

impl Kernel<'_> {
    fn path(&self, dir: usize, file: usize) -> std::path::PathBuf {
        self.0.join(dir.to_string()).join(name(file))
    }
}

fn io<T>(result: std::io::Result<T>) -> Result<T> {
    result.map_err(|error| errors::io(&error, "metadata".to_owned()))
}

impl Names for Kernel<'_> {
    fn mkdir(&self, dir: usize) -> Result<()> {
        io(std::fs::create_dir(self.0.join(dir.to_string())))
    }

    fn create(&self, dir: usize, file: usize) -> Result<()> {
        io(std::fs::File::create_new(self.path(dir, file))).map(drop)
    }

    fn stat(&self, dir: usize, file: usize) -> Result<()> {
        io(std::fs::symlink_metadata(self.path(dir, file))).map(drop)
    }

    fn unlink(&self, dir: usize, file: usize) -> Result<()> {
        io(std::fs::remove_file(self.path(dir, file)))
    }

    fn sync(&self) -> Result<()> {
        io(std::fs::File::open(self.0).and_then(|dir| dir.sync_all()))?;
        super::fixture::run("sync", &["-f".into(), self.0.display().to_string()])
    }

    fn appender(&self, thread: usize, how: Durably) -> Result<Box<dyn FnMut() -> Result<()> + '_>> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let flags = match how {
            Durably::Fsync => OFlags::empty(),
            Durably::Dsync => OFlags::DIRECT | OFlags::DSYNC,
        };
        let mut options = std::fs::OpenOptions::new();
        options.append(true).create(true).custom_flags(flags.bits() as i32);
        let mut file = io(options.open(self.0.join(format!("log-{thread}"))))?;
        let block = Buffer::aligned(BLOCK)?;
        Ok(Box::new(move || {
            io(file.write_all(&block))?;
            if how == Durably::Fsync { io(file.sync_all()) } else { Ok(()) }
        }))
    }
}

struct Ours<'a> {
    volume: &'a Volume,
    fs: Arc<dyn FileSystem>,
    logs: Vec<InodeNo>,
}

impl<'a> Ours<'a> {
    fn new(volume: &'a Volume) -> Result<Self> {
        let fs = Arc::clone(volume.fs());
        let log = |thread| {
            let name = format!("log-{thread}");
            fs.writable().and_then(|writer| {
                writer.create(fs.root(), name.as_bytes(), NewFile::Regular, 0o644, &WHO)
            })
        };
        let logs: Result<_> = (0..16).map(log).collect();
        Ok(Self { volume, logs: logs?, fs })
    }

    /// Resolves the path of a directory each time, like a program that opens files by their paths.
    fn dir(&self, dir: usize) -> Result<InodeNo> {
        Ok(self.fs.resolve(dir.to_string().as_bytes(), Follow::All)?.number())
    }
}

impl Names for Ours<'_> {
    fn mkdir(&self, dir: usize) -> Result<()> {
        let name = dir.to_string();
        self.fs
            .writable()
            .and_then(|writer| {
                writer.create(self.fs.root(), name.as_bytes(), NewFile::Directory, 0o755, &WHO)
            })
            .map(drop)
    }

    fn create(&self, dir: usize, file: usize) -> Result<()> {
        let name = name(file);
        let dir = self.dir(dir)?;
        self.fs
            .writable()
            .and_then(|writer| writer.create(dir, name.as_bytes(), NewFile::Regular, 0o644, &WHO))
            .map(drop)
    }

    fn stat(&self, dir: usize, file: usize) -> Result<()> {
        let path = format!("{dir}/{}", name(file));
        let inode = self.fs.resolve(path.as_bytes(), Follow::NotLast)?;
        std::hint::black_box(inode.stat());
        Ok(())
    }

    fn unlink(&self, dir: usize, file: usize) -> Result<()> {
        self.fs.writable().and_then(|writer| writer.unlink(self.dir(dir)?, name(file).as_bytes()))
    }

    fn sync(&self) -> Result<()> {
        self.fs.sync()
    }

    fn appender(&self, thread: usize, how: Durably) -> Result<Box<dyn FnMut() -> Result<()> + '_>> {
        let block = Buffer::aligned(BLOCK)?;
        if how == Durably::Dsync {
            let inode = self.fs.inode(self.logs[thread])?;
            let file = self.volume.open_inode(inode, FileOptions::new().write(true))?;
            let mut queue = self.volume.queue(&QueueOptions::new().depth(1))?;
            return Ok(Box::new(move || {
                file.append(&mut queue, &block, DioFlags::DSYNC).map(drop)
            }));
        }
        let log = self.logs[thread];
        let mut end = self.fs.inode(log)?.size();
        Ok(Box::new(move || {
            self.fs.writable().and_then(|writer| writer.write(log, FilePos(end), &block))?;
            end += BLOCK as u64;
            self.fs.sync()
        }))
    }
}

/// Operations per second, by name.
type Rates = Vec<(String, f64)>;

fn measure(names: &impl Names, files: usize) -> Result<Rates> {
    let mut rates = Rates::new();
    let dirs = files.div_ceil(DIRECTORY);
    (0..dirs).try_for_each(|dir| names.mkdir(dir))?;
    let each = |work: &dyn Fn(usize, usize) -> Result<()>| -> Result<f64> {
        let begun = Instant::now();
        for file in 0..files {
            go_on()?;
            work(file / DIRECTORY, file)?;
        }
        names.sync()?;
        Ok(files as f64 / begun.elapsed().as_secs_f64())
    };
    rates.push(("create".to_owned(), each(&|dir, file| names.create(dir, file))?));
    rates.push(("stat".to_owned(), each(&|dir, file| names.stat(dir, file))?));
    rates.push(("unlink".to_owned(), each(&|dir, file| names.unlink(dir, file))?));
    for ((how, what), threads) in
        Durably::ALL.into_iter().flat_map(|how| THREADS.map(|threads| (how, threads)))
    {
        let (done, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    let (done, ended) = (&done, &ended);
                    scope.spawn(move || -> Result<()> {
                        let mut append = names.appender(thread, how)?;
                        while !ended.load(Ordering::Relaxed) {
                            append()?;
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(())
                    })
                })
                .collect();
            // `park_timeout` would return too early: each thread of the scope unparks this thread at its end.
            let (_held, never) = mpsc::channel::<()>();
            let _ = never.recv_timeout(SYNCS);
            ended.store(true, Ordering::Relaxed);
            workers.into_iter().try_for_each(|worker| worker.join().unwrap_or(Ok(())))
        })?;
        let rate = done.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
        rates.push((format!("{what}, {threads} threads"), rate));
    }
    Ok(rates)
}

/// In each round, measures ironmap and then the kernel. Prints the medians and their ratio.
pub(super) fn run(kind: FixtureKind, files: usize, rounds: usize) -> Result<Table> {
    let scratch = Scratch::new(kind)?;
    let (mut ours, mut kernel) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        scratch.mke2fs(files * 2)?;
        let location = Location::Plain(Site::file(scratch.path()));
        let options = VolumeOptions::new().write(true);
        let volume = options.open(&location)?;
        ours.push(measure(&Ours::new(&volume)?, files)?);
        volume.close()?;
        drop(volume);
        scratch.mke2fs(files * 2)?;
        let mount = scratch.mount()?;
        kernel.push(measure(&Kernel(mount.dir()), files)?);
        drop(mount);
    }
    let mut table = Table::new();
    table.load_style(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header(["operation", "kernel/s", "ironmap/s", "ratio", "min..max"]);
    for (row, (what, _)) in ours[0].iter().enumerate() {
        let mut ratios: Vec<_> =
            ours.iter().zip(&kernel).map(|(ours, kernel)| ours[row].1 / kernel[row].1).collect();
        let median = |all: &[Rates]| {
            let mut rates: Vec<_> = all.iter().map(|rates| rates[row].1).collect();
            rates.order_by(f64::total_cmp);
            rates[rates.len() / 2]
        };
        ratios.order_by(f64::total_cmp);
        table.add_row([
            what.clone(),
            format!("{:.0}", median(&kernel)),
            format!("{:.0}", median(&ours)),
            format!("{:.2}", ratios[ratios.len() / 2]),
            format!("{:.2}..{:.2}", ratios[0], ratios[ratios.len() - 1]),
        ]);
    }
    Ok(table)
}
