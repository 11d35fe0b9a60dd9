//! Commands of the system, their failures, and messages for the user.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

/// Why a chore ends early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A command failed with this exit status, and has said why.
    Status(u8),
    Why(String),
}

pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Why(error.to_string())
    }
}

impl Failure {
    /// Says why, and gives the exit status.
    pub(crate) fn status(self) -> u8 {
        match self {
            Self::Status(status) => status,
            Self::Why(why) => {
                eprintln!("x: {why}");
                1
            }
        }
    }
}

/// The exit status of several steps that all have their turn: of the last that failed.
#[derive(Default)]
pub(crate) struct Status(u8);

impl Status {
    pub(crate) fn add(&mut self, step: Result) {
        if let Err(failure) = step {
            self.0 = failure.status();
        }
    }

    pub(crate) fn result(self) -> Result {
        if self.0 == 0 { Ok(()) } else { Err(Failure::Status(self.0)) }
    }
}

pub(crate) fn fail<T>(why: impl Into<String>) -> Result<T> {
    Err(Failure::Why(why.into()))
}

/// A command of words without spaces; more arguments can be added.
pub(crate) fn command(words: &str) -> Command {
    let mut words = words.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// Waits for a command's end.
pub(crate) fn run(command: &mut Command) -> Result {
    wait(spawn(command)?)
}

/// As [`run`], of words without spaces.
pub(crate) fn sh(words: &str) -> Result {
    run(&mut command(words))
}

pub(crate) fn spawn(command: &mut Command) -> Result<Child> {
    command.spawn().or_else(|error| {
        fail(format!("cannot run {}: {error}", command.get_program().to_string_lossy()))
    })
}

pub(crate) fn wait(mut child: Child) -> Result {
    ended(child.wait()?)
}

/// The result of a command's exit status; 1 for a command that a signal ended.
pub(crate) fn ended(status: ExitStatus) -> Result {
    match status.code() {
        Some(0) => Ok(()),
        code => Err(Failure::Status(code.and_then(|code| code.try_into().ok()).unwrap_or(1))),
    }
}

/// The standard output of a command.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let mut text = String::new();
    let mut child = spawn(command.stdout(Stdio::piped()))?;
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut text)?;
    }
    wait(child).map(|()| text)
}

/// Whether a command succeeds, which nobody sees.
pub(crate) fn succeeds(words: &str) -> bool {
    let mut command = command(words);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    run(&mut command).is_ok()
}

/// Whether there is a program of this name.
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// A variable of the environment that is set to something.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A path in cargo's target directory.
pub(crate) fn target(path: &str) -> PathBuf {
    let dir = std::env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into());
    let dir = std::path::absolute(dir).unwrap_or("target".into());
    dir.join(path)
}

pub(crate) fn say(what: impl AsRef<str>) {
    println!("\n== {}", what.as_ref());
}

/// Reports a skipped step, also in the log that `./x test` reads.
pub(crate) fn skip(what: &str) -> Result {
    println!("SKIP {what}");
    if let Some(log) = variable("IRONMAP_SKIP_LOG") {
        let mut log = File::options().create(true).append(true).open(log)?;
        writeln!(log, "SKIP {what}")?;
    }
    Ok(())
}

/// Output that goes to the terminal, and to a file where there is one.
#[derive(Default)]
pub(crate) struct Tee(Option<File>);

impl Tee {
    pub(crate) fn create(path: impl AsRef<OsStr>) -> Result<Tee> {
        Ok(Tee(Some(File::create(path.as_ref())?)))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result {
        io::stdout().write_all(bytes)?;
        io::stdout().flush()?;
        if let Some(file) = &mut self.0 {
            file.write_all(bytes)?;
        }
        Ok(())
    }

    /// Runs a command with standard output and errors shown so.
    pub(crate) fn run(&mut self, command: &mut Command) -> Result {
        if self.0.is_none() {
            return run(command);
        }
        let (mut reader, writer) = io::pipe()?;
        let child = spawn(command.stdout(writer.try_clone()?).stderr(writer))?;
        // The command holds the pipe's other end, which would never be read to its end.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut buffer = vec![0; 1 << 16];
        loop {
            match reader.read(&mut buffer)? {
                0 => return wait(child),
                length => self.write(&buffer[..length])?,
            }
        }
    }
}
