//! Ctrl-C, SIGTERM and SIGHUP while something is changed: the command stops at the next file and tidies up, so that nothing is left to
//! recover or to remove.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock, Once};
use std::{io, thread};

use ironmap_image::{Failure, Stop};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Handlers of signals are the process's, and set it.
static CAUGHT: LazyLock<Stop> = LazyLock::new(Stop::default);

/// The request to stop that signals make.
pub(crate) fn stop() -> &'static Stop {
    &CAUGHT
}

/// The signals that the program was not started to ignore, as by nohup.
fn heard() -> impl Iterator<Item = i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    SIGNALS.into_iter().filter(move |signal| ignored & 1 << (signal - 1) == 0)
}

/// From now on a first signal is remembered, and a second one ends the program where it stands: a volume with a journal recovers.
pub(crate) fn catch() {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        let ends = Arc::new(AtomicBool::new(false));
        for signal in heard() {
            // Without a handler the first signal ends the program. They run in this order: the first one ends nothing.
            let _ = flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&ends));
            let _ = flag::register(signal, Arc::clone(&ends));
        }
        remember();
    });
}

/// From now on signals are remembered, and end nothing.
pub(crate) fn remember() {
    for signal in heard() {
        let _ = flag::register_usize(signal, CAUGHT.flag(), signal as usize);
    }
}

/// Runs this for each signal from now on, in a thread of its own.
pub(crate) fn on_signal(act: impl Fn() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new(heard())?;
    thread::Builder::new().spawn(move || signals.forever().for_each(|_| act()))?;
    Ok(())
}

/// Whether a signal came.
pub(crate) fn caught() -> bool {
    CAUGHT.is_set()
}

/// Fails once a signal came.
pub(crate) fn check() -> Result<(), Failure> {
    CAUGHT.check()
}
