//! Bounds of time and memory, for each damaged volume.

use std::io::Write as _;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What reading one damaged volume may take, on a slow and busy machine. Most take less than a millisecond.
const TIME: Duration = Duration::from_secs(20);
/// What all tests of this program may have allocated at one time: past it an allocation aborts. docs/SAFETY.md says what the
/// crate itself may take; these small volumes cannot make it take as much.
const MEMORY: u64 = 768 << 20;

/// A thread that ends the program, with the volume named, where one takes too long. It waits for messages, not for time.
pub(crate) struct Watch {
    begun: Sender<String>,
}

impl Watch {
    pub(crate) fn start(test: &str) -> Self {
        let limits = getrlimit(Resource::Data);
        if limits.current.is_none_or(|current| current > MEMORY) {
            setrlimit(Resource::Data, Rlimit { current: Some(MEMORY), ..limits }).unwrap();
        }
        let (begun, images) = channel::<String>();
        let test = test.to_owned();
        thread::spawn(move || {
            let mut image = String::new();
            loop {
                match images.recv_timeout(TIME) {
                    Ok(next) => image = next,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        // Around the capture of output, which would be lost.
                        let _ =
                            writeln!(std::io::stderr(), "{test}: more than {TIME:?} for {image}");
                        std::process::abort();
                    }
                }
            }
        });
        Self { begun }
    }

    /// The next volume is begun; shown too where the test fails.
    pub(crate) fn begin(&self, image: String) {
        println!("{image}");
        let _ = self.begun.send(image);
    }
}
