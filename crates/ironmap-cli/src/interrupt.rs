//! Ctrl-C while a volume is changed: the command stops at the next file and closes the volume, so that nothing is left to recover.

use std::process;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Code, Failure};

static CAUGHT: AtomicBool = AtomicBool::new(false);

/// From now on a first signal is remembered, and a second one ends the program where it stands: a volume with a journal recovers.
pub(crate) fn catch() {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // Without a handler the first signal ends the program.
        let _ = ctrlc::set_handler(|| {
            if CAUGHT.swap(true, Ordering::Relaxed) {
                process::exit(Code::Interrupted as i32);
            }
        });
    });
}

/// Whether a signal came.
pub(crate) fn caught() -> bool {
    CAUGHT.load(Ordering::Relaxed)
}

/// Fails once a signal came.
pub(crate) fn check() -> Result<(), Failure> {
    if caught() { Err(Failure::interrupted()) } else { Ok(()) }
}
