//! Threads that read files with every call and check every word. The reads go to the device while no process writes to the file.

use std::collections::HashMap;
use std::fs::File as OsFile;
use std::io::IoSliceMut;
use std::ops::AddAssign;
use std::os::fd::AsRawFd;
use std::time::Duration;

use ironmap::bio::Buffer;
use ironmap::dio::{Completion, DioFlags};
use ironmap::fs::host::Refusal;
use ironmap::units::FilePos;
use ironmap::{File, FileOptions, Host, Queue, QueueOptions};

use super::Setting;
use super::common::command::output;
use super::common::process::pause;
use super::common::ranges::{bytes, pieces};
use super::common::rng::Rng;
use super::ledger::{LARGEST, Ledger, Look, name_of};

/// The number of requests in flight.
const DEPTH: usize = 32;
/// The number of files that a thread has open.
const HANDLES: usize = 10;
/// The maximum length of a read.
const LONGEST: u64 = 160 << 10;

/// The counters of a reading thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) reads: u64,
    pub(crate) kernel_served: u64,
    pub(crate) cut: u64,
    pub(crate) breaks: u64,
    /// The number of files whose lease was broken and later acquired again.
    pub(crate) retaken: u64,
}

impl AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.kernel_served += other.kernel_served;
        self.cut += other.cut;
        self.breaks += other.breaks;
        self.retaken += other.retaken;
    }
}

/// An open file, with its number.
struct Handle {
    id: u64,
    name: String,
    file: File,
}

struct Reader<'a> {
    setting: &'a Setting,
    ledger: &'a Ledger,
    host: &'a Host,
    queue: Queue,
    rng: Rng,
    seen: Seen,
    in_flight: HashMap<u64, (Look, String)>,
}

/// Reads until the stop flag is set.
pub(crate) fn run(setting: &Setting, ledger: &Ledger, host: &Host, number: u64) -> Seen {
    let queue = host.queue(&QueueOptions::new().depth(DEPTH as u32)).expect("a queue");
    let rng = Rng::new(setting.seed ^ number << 16);
    let (seen, in_flight) = (Seen::default(), HashMap::new());
    let mut reader = Reader { setting, ledger, host, queue, rng, seen, in_flight };
    let mut handles: Vec<_> = (0..HANDLES).map(|_| reader.open()).collect();
    while !ledger.stopped() {
        let at = reader.rng.below(HANDLES as u64) as usize;
        for _ in 0..=reader.rng.below(40) {
            match reader.rng.below(5) {
                0 => reader.read(&handles[at]),
                1 => reader.read_simply(&handles[at]),
                2 => reader.read_vectored(&handles[at]),
                _ => reader.submit(&handles[at]),
            }
        }
        if reader.rng.below(4) == 0 {
            let new = reader.open();
            // Some requests to the previous file may still be in flight.
            reader.close(&std::mem::replace(&mut handles[at], new));
        }
    }
    while reader.queue.outstanding() > 0 {
        reader.reap(1);
    }
    handles.iter().for_each(|handle| reader.close(handle));
    reader.seen.kernel_served = reader.queue.stats().kernel_served;
    reader.seen.cut = reader.queue.stats().cut;
    reader.seen
}

impl Reader<'_> {
    /// Opens a random file. Another file may get this name at any time. So the number of the file is read from the descriptor.
    fn open(&mut self) -> Handle {
        loop {
            let path = match self.rng.below(12) {
                0 => self.setting.dir.join(Setting::IMMUTABLE),
                1 if self.setting.kind.has_reflink() => self.setting.dir.join(Setting::DEDUPED),
                _ => self.setting.any_slot(&mut self.rng),
            };
            let Ok(os) = OsFile::open(&path) else {
                assert!(!self.ledger.stopped(), "{} is not there", path.display());
                continue;
            };
            let kept = path.ends_with(Setting::IMMUTABLE) || path.ends_with(Setting::DEDUPED);
            let options = FileOptions::new().assume_no_dedupe(!kept);
            let same = format!("/proc/self/fd/{}", os.as_raw_fd());
            let file = self.host.open_with(same, options).expect("open");
            if path.ends_with(Setting::DEDUPED) {
                let refusal = file.host().expect("a host file").refusal;
                assert_eq!(refusal, Some(Refusal::Dedupe));
            }
            return Handle { id: name_of(&os), name: path.display().to_string(), file };
        }
    }

    fn close(&mut self, handle: &Handle) {
        let report = handle.file.host().expect("a host file");
        self.seen.breaks += report.breaks;
        self.seen.retaken += u64::from(report.breaks > 0 && report.is_raw());
        if handle.name.ends_with(Setting::IMMUTABLE) {
            assert!(report.breaks == 0 && report.is_raw(), "an immutable file: {report:?}");
        }
    }

    fn fail(&self, what: &str, how: &str) -> ! {
        // The kernel's log shows whether the error came from the kernel.
        let log = output::<&str>("dmesg", &[]).stdout;
        let log = String::from_utf8_lossy(&log);
        log.lines()
            .rev()
            .take(20)
            .collect::<Vec<_>>()
            .iter()
            .rev()
            .for_each(|line| println!("{line}"));
        panic!("{}, seed {:#x}: {how}: {what}", self.setting.kind.name(), self.setting.seed)
    }

    /// A range of any alignment.
    fn range(&mut self) -> (u64, usize) {
        let most = 1 << self.rng.below(LONGEST.ilog2().into());
        let len = self.rng.below(most) + 1;
        (self.rng.below(LARGEST - len), len as usize)
    }

    fn judge(&mut self, look: &Look, read: &[u8], how: &str) {
        self.seen.reads += 1;
        if let Err(what) = look.judge(self.ledger, read) {
            self.fail(&what, how);
        }
    }

    fn read(&mut self, handle: &Handle) {
        let (pos, len) = self.range();
        let mut memory = vec![0xA5; len];
        let look = self.ledger.look(handle.id, pos, len);
        let count = handle.file.read_at(&mut self.queue, &mut memory, FilePos(pos));
        let how = format!("read of {len} at {pos} of {}", handle.name);
        let count = count.unwrap_or_else(|error| self.fail(&error.to_string(), &how));
        self.judge(&look, &memory[..count], &how);
    }

    /// Reads one aligned block, on the short code path for simple requests if possible.
    fn read_simply(&mut self, handle: &Handle) {
        let pos = self.rng.below(LARGEST / 1024) * 1024;
        let mut memory = Buffer::aligned(1024).expect("memory");
        let look = self.ledger.look(handle.id, pos, memory.len());
        let count = handle.file.read_at(&mut self.queue, &mut memory, FilePos(pos));
        let how = format!("read of a block at {pos} of {}", handle.name);
        let count = count.unwrap_or_else(|error| self.fail(&error.to_string(), &how));
        self.judge(&look, &memory[..count], &how);
    }

    fn read_vectored(&mut self, handle: &Handle) {
        let (pos, len) = self.range();
        let mut memory = vec![0xA5; len];
        let mut rest = &mut memory[..];
        let mut slices = Vec::new();
        for piece in pieces(&mut self.rng, len, 1) {
            let (slice, left) = std::mem::take(&mut rest).split_at_mut(piece);
            slices.push(IoSliceMut::new(slice));
            rest = left;
        }
        let look = self.ledger.look(handle.id, pos, len);
        let flags = DioFlags::empty();
        let count = handle.file.read_vectored_at(&mut self.queue, &mut slices, FilePos(pos), flags);
        let how = format!("vectored read of {len} at {pos} of {}", handle.name);
        let count = count.unwrap_or_else(|error| self.fail(&error.to_string(), &how));
        self.judge(&look, &memory[..count], &how);
    }

    fn submit(&mut self, handle: &Handle) {
        if self.in_flight.len() == DEPTH {
            if self.rng.below(6) == 0 {
                // The thread sometimes pauses here. Some of its requests are then not yet submitted, and some completions are not yet
                // popped.
                pause(Duration::from_millis(self.rng.below(100)));
            }
            let wanted = self.rng.below(DEPTH as u64) as usize;
            self.reap(wanted);
        }
        let (mut pos, mut len) = self.range();
        if self.rng.below(4) > 0 {
            pos = pos / 1024 * 1024;
            len = len.next_multiple_of(1024);
        }
        let memory = Buffer::aligned(len).expect("memory");
        let token = self.rng.next();
        let how = format!("submitted read of {len} at {pos} of {}", handle.name);
        let look = self.ledger.look(handle.id, pos, len);
        self.in_flight.insert(token, (look, how));
        let flags = DioFlags::empty();
        let submitted =
            handle.file.submit_read(&mut self.queue, memory, FilePos(pos), flags, token);
        if let Err(rejected) = submitted {
            self.fail(&rejected.error.to_string(), "submit");
        }
        if self.rng.below(8) == 0 {
            self.queue.poll().expect("poll");
        }
    }

    fn reap(&mut self, wanted: usize) {
        self.queue.wait(wanted).expect("wait");
        while let Some(Completion { token, memory, result, .. }) = self.queue.pop() {
            let (look, how) = self.in_flight.remove(&token).expect("a request in flight");
            let count = result.unwrap_or_else(|error| self.fail(&error.to_string(), &how));
            self.judge(&look, &bytes(&memory)[..count], &how);
        }
    }
}
