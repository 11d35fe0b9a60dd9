//! Child processes of a test. A child is a second process of this test program, and runs only one test. This test does something only if
//! the environment variables of a child are set.

use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// The time limit for a wait. All waits normally end much earlier.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that is killed when this value is dropped.
pub(crate) struct Process {
    name: String,
    child: Child,
}

impl Process {
    /// Starts this program again with these environment variables, and runs only the test of this name. Standard error is not captured.
    pub(crate) fn start(test: &str, variables: &[(&str, &OsStr)]) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
        command.envs(variables.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null());
        let name = variables.iter().map(|(_, value)| value.to_string_lossy()).collect::<Vec<_>>();
        Self { name: name.join(" "), child: command.spawn().expect("a process") }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
        rustix::process::kill_process(pid, signal).expect("a signal");
    }

    /// Waits until all threads of a process have stopped. The caller has already sent a stop signal to the process.
    pub(crate) fn wait_stopped(&self) {
        let tasks = format!("/proc/{}/task", self.child.id());
        let stopped = |stat: String| stat.rsplit(") ").next().is_some_and(|s| s.starts_with('T'));
        until("it stops", || {
            let mut tasks = std::fs::read_dir(&tasks).expect("its threads").flatten();
            tasks.all(|task| std::fs::read_to_string(task.path().join("stat")).is_ok_and(stopped))
        });
    }

    /// Whether the process is still running.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().expect("its state").is_none()
    }

    /// Waits for the end of the process, which must succeed.
    pub(crate) fn finish(mut self) {
        until(&self.name.clone(), || !self.runs());
        let status = self.child.wait().expect("its end");
        assert!(status.success(), "{}: {status}", self.name);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes the calling process end when its parent ends, even if the parent is killed. This must be the first call in the process.
pub(crate) fn end_with_parent() {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).expect("a signal");
}

/// Waits until a condition is true. Fails the test after the time limit.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "waited too long: {what}");
        pause(Duration::from_millis(1));
    }
}

/// Pauses this thread for about this time, so that other threads can run. The pause only sets how often a test sends requests or repeats a
/// check. No test may depend on the exact length of the pause.
pub(crate) fn pause(time: Duration) {
    std::thread::park_timeout(time);
}
