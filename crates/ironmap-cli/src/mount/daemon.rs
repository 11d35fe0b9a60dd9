//! Runs the mount in the background. The program starts a new process of itself, and waits until this process reports the mount.

use std::env;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixDatagram;
use std::process::{self, Command, Stdio};

use ironmap_image::Failure;

use super::fail::Log;
use crate::terminal::one_line;

/// The message that the background process sends after the mount.
const MOUNTED: &[u8] = b"mounted\n";

/// Starts the background process, and shows its errors until it serves the volume. If the background process ends before that, this program
/// ends with the same exit code.
pub(super) fn start() -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::host("continue in the background", error);
    let program = env::current_exe().map_err(failed)?;
    // If the program was called by the name of the mount helper, the arguments contain no command. `as_mount_helper` adds the command.
    let args: Vec<_> = env::args_os().collect();
    let args = super::as_mount_helper(&args).unwrap_or(args);
    // The additional options are inserted directly after the command. At the end of the arguments, they could follow a `--` of the user,
    // and would then not count as options.
    let command = args.iter().position(|arg| arg == "mount").unwrap_or(1);
    let (command, rest) = args.split_at(args.len().min(command + 1));
    let mut child = Command::new(program)
        .args(&command[1..])
        .args(["--foreground", "--tell"])
        .args(rest)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut printed = Vec::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_end(&mut printed).map_err(failed)?;
    }
    if printed == MOUNTED {
        return Ok(());
    }
    let code = child.wait().map_err(failed)?.code();
    process::exit(code.unwrap_or(1));
}

/// Writes a line to the system's log.
pub(super) fn log(what: impl Display) {
    // The priority 27 is facility LOG_DAEMON (3) and severity LOG_ERR (3).
    let line = format!("<27>ironmap[{}]: {}", process::id(), one_line(&what.to_string()));
    // If there is no system log, or its socket is full, the message is lost.
    let _ = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(line.as_bytes(), "/dev/log")
    });
}

/// The state of the background process after the mount.
pub(super) struct Ready;

impl Ready {
    /// Reports the mount to the program that started this process, and detaches this process from the terminal and from the working
    /// directory.
    pub(super) fn report(&self, log: &Log) -> io::Result<()> {
        io::stdout().write_all(MOUNTED)?;
        io::stdout().flush()?;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        log.enter_background();
        // The call fails only if this process is already the leader of a process group. Such a failure is ignored.
        let _ = rustix::process::setsid();
        env::set_current_dir("/")
    }
}
