//! Handles Ctrl-C, SIGTERM and SIGHUP during a change. The command stops at the next file and cleans up. The user does not need to recover
//! or remove anything.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock, Once};
use std::{io, thread};

use ironmap_image::{Failure, Stop};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// The request to stop. It is static, because signal handlers are global to the process.
static CAUGHT: LazyLock<Stop> = LazyLock::new(Stop::default);

/// The request to stop. Signal handlers set it.
pub(crate) fn stop() -> &'static Stop {
    &CAUGHT
}

/// The signals to handle. If the parent process ignores a signal, as nohup does, this process ignores the signal too.
fn heard() -> impl Iterator<Item = i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    SIGNALS.into_iter().filter(move |signal| ignored & 1 << (signal - 1) == 0)
}

/// Installs handlers. The first signal is recorded. A second signal ends the program immediately; the next open of a volume with a journal
/// then recovers the volume.
pub(crate) fn catch() {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        let ends = Arc::new(AtomicBool::new(false));
        for signal in heard() {
            // Handlers run in the order of their registration. At the first signal, `ends` is still false when the first handler runs, so
            // the program continues.
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
