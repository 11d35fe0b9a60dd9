//! Handles Ctrl-C, SIGTERM and SIGHUP during a change: the command stops at the next file and cleans up, so that the user does not need to
//! recover or remove anything.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock, Once};
use std::{io, thread};

use ironmap_image::{Failure, Stop};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// The request to stop, which signal handlers set. It is static because signal handlers are global to the process.
static CAUGHT: LazyLock<Stop> = LazyLock::new(Stop::default);

/// The request to stop, which signals set.
pub(crate) fn stop() -> &'static Stop {
    &CAUGHT
}

/// The signals to handle. A signal that the parent process has set to be ignored, as nohup does, stays ignored.
fn heard() -> impl Iterator<Item = i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    SIGNALS.into_iter().filter(move |signal| ignored & 1 << (signal - 1) == 0)
}

/// Installs handlers: the first signal is recorded, and a second signal ends the program immediately. A volume with a journal is then
/// recovered when it is next opened.
pub(crate) fn catch() {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        let ends = Arc::new(AtomicBool::new(false));
        for signal in heard() {
            // For each signal, the handlers run in the order in which they are registered. When the first signal arrives, the first handler
            // finds `ends` still false, so it does not end the program.
            let _ = flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&ends));
            let _ = flag::register(signal, Arc::clone(&ends));
        }
        remember();
    });
}

/// Installs handlers that record signals, and do not end the program.
pub(crate) fn remember() {
    for signal in heard() {
        let _ = flag::register_usize(signal, CAUGHT.flag(), signal as usize);
    }
}

/// Runs `act` in a separate thread for each signal that arrives after this call.
pub(crate) fn on_signal(act: impl Fn() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new(heard())?;
    thread::Builder::new().spawn(move || signals.forever().for_each(|_| act()))?;
    Ok(())
}

/// Whether a signal was received.
pub(crate) fn caught() -> bool {
    CAUGHT.is_set()
}

/// Fails if a signal was received.
pub(crate) fn check() -> Result<(), Failure> {
    CAUGHT.check()
}
