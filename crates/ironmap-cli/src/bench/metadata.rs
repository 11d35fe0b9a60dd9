//! Names instead of data: files made, looked up and removed, and syncs of many threads, by ironmap and by the kernel's ext4 in turn on the
//! same device.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use comfy_table::Table;
use ironmap::fs::ext4::{Credentials, Ext4, Follow, NewFile, ROOT};
use ironmap::location::Part;
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Location, OpenOptions, Result, Volume};

use super::fixture::{FixtureKind, Scratch};

/// Files of a directory.
const DIRECTORY: usize = 1000;
const THREADS: [usize; 3] = [1, 2, 16];
const SYNCS: Duration = Duration::from_millis(500);
const WHO: Credentials = Credentials { uid: 0, gid: 0, umask: 0 };

/// What both can do. A path is a directory and a file's number.
trait Names: Sync {
    fn mkdir(&self, dir: usize) -> Result<()>;
    fn create(&self, dir: usize, file: usize) -> Result<()>;
    fn stat(&self, dir: usize, file: usize) -> Result<()>;
    fn unlink(&self, dir: usize, file: usize) -> Result<()>;
    fn sync(&self) -> Result<()>;
    /// Appends a block to the file of a thread and makes it durable.
    fn append(&self, thread: usize, round: u64) -> Result<()>;
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
    result.map_err(|error| super::io(&error, "metadata".to_owned()))
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

    fn append(&self, thread: usize, _round: u64) -> Result<()> {
        use std::io::Write;
        let path = self.0.join(format!("log-{thread}"));
        let mut file = io(std::fs::OpenOptions::new().append(true).create(true).open(path))?;
        io(file.write_all(&[7; 4096]).and_then(|()| file.sync_all()))
    }
}

struct Ours {
    fs: Arc<Ext4>,
    logs: Vec<InodeNo>,
}

impl Ours {
    fn new(volume: &Volume) -> Result<Self> {
        let fs = Arc::clone(volume.fs());
        let log = |thread| {
            let name = format!("log-{thread}");
            fs.create(ROOT, name.as_bytes(), NewFile::Regular, 0o644, &WHO)
        };
        let logs: Result<_> = (0..16).map(log).collect();
        Ok(Self { logs: logs?, fs })
    }

    /// As a program does it that was given a path.
    fn dir(&self, dir: usize) -> Result<InodeNo> {
        Ok(self.fs.resolve(dir.to_string().as_bytes(), Follow::All)?.number())
    }
}

impl Names for Ours {
    fn mkdir(&self, dir: usize) -> Result<()> {
        let name = dir.to_string();
        self.fs.create(ROOT, name.as_bytes(), NewFile::Directory, 0o755, &WHO).map(drop)
    }

    fn create(&self, dir: usize, file: usize) -> Result<()> {
        let name = name(file);
        let dir = self.dir(dir)?;
        self.fs.create(dir, name.as_bytes(), NewFile::Regular, 0o644, &WHO).map(drop)
    }

    fn stat(&self, dir: usize, file: usize) -> Result<()> {
        let path = format!("{dir}/{}", name(file));
        let inode = self.fs.resolve(path.as_bytes(), Follow::NotLast)?;
        std::hint::black_box(inode.stat());
        Ok(())
    }

    fn unlink(&self, dir: usize, file: usize) -> Result<()> {
        self.fs.unlink(self.dir(dir)?, name(file).as_bytes())
    }

    fn sync(&self) -> Result<()> {
        self.fs.sync()
    }

    fn append(&self, thread: usize, round: u64) -> Result<()> {
        self.fs.write(self.logs[thread], FilePos(round * 4096), &[7; 4096])?;
        self.fs.sync()
    }
}

/// Operations a second, by what they are.
type Rates = Vec<(String, f64)>;

fn measure(names: &impl Names, files: usize) -> Result<Rates> {
    let mut rates = Rates::new();
    let dirs = files.div_ceil(DIRECTORY);
    (0..dirs).try_for_each(|dir| names.mkdir(dir))?;
    let each = |work: &dyn Fn(usize, usize) -> Result<()>| -> Result<f64> {
        let begun = Instant::now();
        for file in 0..files {
            super::go_on()?;
            work(file / DIRECTORY, file)?;
        }
        names.sync()?;
        Ok(files as f64 / begun.elapsed().as_secs_f64())
    };
    rates.push(("create".to_owned(), each(&|dir, file| names.create(dir, file))?));
    rates.push(("stat".to_owned(), each(&|dir, file| names.stat(dir, file))?));
    rates.push(("unlink".to_owned(), each(&|dir, file| names.unlink(dir, file))?));
    let mut rounds = [0; 16];
    for threads in THREADS {
        let (done, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    let (done, ended, first) = (&done, &ended, rounds[thread]);
                    scope.spawn(move || -> Result<u64> {
                        let mut round = first;
                        while !ended.load(Ordering::Relaxed) {
                            names.append(thread, round)?;
                            round += 1;
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(round)
                    })
                })
                .collect();
            // A thread that is parked wakes up when another one of its scope ends.
            let (_held, never) = mpsc::channel::<()>();
            let _ = never.recv_timeout(SYNCS);
            ended.store(true, Ordering::Relaxed);
            for (thread, worker) in workers.into_iter().enumerate() {
                rounds[thread] = worker.join().unwrap_or(Ok(0))?;
            }
            Ok::<(), ironmap::Error>(())
        })?;
        let rate = done.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
        rates.push((format!("append 4K and fsync, {threads} threads"), rate));
    }
    Ok(rates)
}

/// Measures both in turn, so many rounds, and prints the medians and their ratio.
pub(super) fn run(kind: FixtureKind, files: usize, rounds: usize) -> Result<()> {
    let scratch = Scratch::new(kind)?;
    let (mut ours, mut kernel) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        scratch.mke2fs(files * 2)?;
        let location = Location { path: scratch.path().to_owned(), part: Part::Whole };
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        let volume = Volume::open(&location, &options)?;
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
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        };
        ratios.sort_by(f64::total_cmp);
        table.add_row([
            what.clone(),
            format!("{:.0}", median(&kernel)),
            format!("{:.0}", median(&ours)),
            format!("{:.2}", ratios[ratios.len() / 2]),
            format!("{:.2}..{:.2}", ratios[0], ratios[ratios.len() - 1]),
        ]);
    }
    println!("{table}");
    Ok(())
}
