//! Ctrl-C, SIGTERM and SIGHUP during a change: the command stops at the next file and cleans up, so that nothing remains to be
//! recovered or removed.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Once};
use std::{io, thread};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use rustix_libc::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::failure::{Code, Failure};

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// The number of the last signal received, or 0.
static CAUGHT: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// The signals that the program was not started to ignore, as nohup does.
fn heard() -> impl Iterator<Item = i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    SIGNALS.into_iter().filter(move |signal| ignored & 1 << (signal - 1) == 0)
}

/// Installs handlers: the first signal is recorded, and a second one ends the program at once. A volume with a journal recovers.
pub(crate) fn catch() {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        let ends = Arc::new(AtomicBool::new(false));
        for signal in heard() {
            // Until both handlers exist, a signal ends the program. They run in this order, so the first signal finds `ends` unset.
            let _ = flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&ends));
            let _ = flag::register(signal, Arc::clone(&ends));
        }
        remember();
    });
}

/// Installs handlers that record signals, and do not end the program.
pub(crate) fn remember() {
    for signal in heard() {
        let _ = flag::register_usize(signal, Arc::clone(&CAUGHT), signal as usize);
    }
}

/// Runs `act` for each later signal, in a thread of its own.
pub(crate) fn on_signal(act: impl Fn() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new(heard())?;
    thread::Builder::new().spawn(move || signals.forever().for_each(|_| act()))?;
    Ok(())
}

/// Whether a signal was received.
pub(crate) fn caught() -> bool {
    CAUGHT.load(Ordering::Relaxed) != 0
}

/// Fails once a signal was received.
pub(crate) fn check() -> Result<(), Failure> {
    match CAUGHT.load(Ordering::Relaxed) as i32 {
        0 => Ok(()),
        SIGTERM => Err(Failure::interrupted(Code::Terminated)),
        SIGHUP => Err(Failure::interrupted(Code::HungUp)),
        _ => Err(Failure::interrupted(Code::Interrupted)),
    }
}

/// The failure, or the signal if one was received: any operation can fail after that.
pub(crate) fn cause(failure: Failure) -> Failure {
    check().err().unwrap_or(failure)
}

/// Waits until data can be read, or every writer has closed its end.
///
/// # Errors
/// `INTR` once a signal was received, `CANCELED` once `is_wanted` returns false.
pub(crate) fn wait(fd: impl AsFd, is_wanted: impl Fn() -> bool) -> Result<(), Errno> {
    let turn = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    while !caught() {
        if !is_wanted() {
            return Err(Errno::CANCELED);
        }
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&turn)) {
            // After a signal the next turn of the loop checks it. A read here would wait for data that may never come.
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            // The read reports the error.
            _ => return Ok(()),
        }
    }
    Err(Errno::INTR)
}
