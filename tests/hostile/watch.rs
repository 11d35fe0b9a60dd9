//! Limits of time and memory for each damaged volume.

use std::io::Write as _;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// After this time a test counts as hung. Most volumes are read in less than a millisecond, and in less than a second on a busy machine.
const TIME: Duration = Duration::from_secs(120);
/// The maximum memory that this test program may have allocated at any time. A larger allocation aborts the program. docs/safety/bounds.md
/// gives the limits of the crate itself. These small volumes cannot reach them.
const MEMORY: u64 = 768 << 20;

/// A thread that watches the tests. Each test reports its next volume to this thread. If a volume takes too long, the thread names it and
/// ends the program.
pub(crate) struct Watch {
    begun: Sender<String>,
}

impl Watch {
    #[allow(dead_code, reason = "not every suite has its bound")]
    pub(crate) fn start(test: &str) -> Self {
        Self::bounded(test, TIME)
    }

    /// Makes a watch with a time limit that the test chooses.
    #[allow(dead_code, reason = "not every suite has a bound of its own")]
    pub(crate) fn bounded(test: &str, time: Duration) -> Self {
        let limits = getrlimit(Resource::Data);
        if limits.current.is_none_or(|current| current > MEMORY) {
            setrlimit(Resource::Data, Rlimit { current: Some(MEMORY), ..limits }).unwrap();
        }
        let (begun, images) = channel::<String>();
        let test = test.to_owned();
        thread::spawn(move || {
            let mut image = String::new();
            loop {
                match images.recv_timeout(time) {
                    Ok(next) => image = next,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        // The message is not captured by the test runner. Captured output would be lost when the program ends.
                        let _ =
                            writeln!(std::io::stderr(), "{test}: more than {time:?} for {image}");
                        std::process::abort();
                    }
                }
            }
        });
        Self { begun }
    }

    /// Reports the next volume to the watch. If the test fails, the name of the volume is also printed.
    #[allow(dead_code, reason = "not every suite shows it")]
    pub(crate) fn begin(&self, image: String) {
        println!("{image}");
        self.next(image);
    }

    /// Reports the next volume to the watch. The name is printed only if the volume takes too long.
    pub(crate) fn next(&self, image: String) {
        let _ = self.begun.send(image);
    }
}
