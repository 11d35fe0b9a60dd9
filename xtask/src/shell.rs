//! Commands of the system, their failures, and messages for the user.

use std::fs::File;
use std::io::{self, Write as _};
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
    let output = spawn(command.stdout(Stdio::piped()))?.wait_with_output()?;
    ended(output.status).map(|()| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a line of shell succeeds, without its output.
pub(crate) fn succeeds(line: &str) -> bool {
    let mut shell = command("sh -c");
    shell.arg(line).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    run(&mut shell).is_ok()
}

/// Whether a program or toolchain is ready, if need be after an installation, which is announced first.
pub(crate) fn or_install(ready: &str, name: &str, install: &str) -> bool {
    if succeeds(ready) {
        return true;
    }
    println!("to be installed: {name}");
    succeeds(install) && succeeds(ready)
}

/// As [`or_install`], of a version of Rust.
pub(crate) fn has_rust(toolchain: &str) -> bool {
    let install = format!("rustup toolchain install {toolchain} --profile minimal");
    or_install(&format!("cargo +{toolchain} --version"), &format!("Rust {toolchain}"), &install)
}

/// Whether there is a program of this name.
pub(crate) fn has(program: &str) -> bool {
    succeeds(&format!("command -v {program}"))
}

pub(crate) fn is_root() -> Result<bool> {
    Ok(output(&mut command("id -u"))?.trim() == "0")
}

/// The workspace with every feature: pre-shared keys link OpenSSL, so none of its crates has them by default.
pub(crate) const WORKSPACE: &str = "--workspace --features ironmap/psk";

/// The program, built for release.
pub(crate) fn ironmap() -> Result<PathBuf> {
    sh("cargo build --quiet --locked --release -p ironmap-cli --features psk")?;
    Ok(target("release/ironmap"))
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

/// Output that goes to the terminal, and to the end of a file where there is one.
#[derive(Default)]
pub(crate) struct Tee(pub(crate) Option<PathBuf>);

impl Tee {
    /// Runs a command with standard output and errors shown so.
    pub(crate) fn run(&self, command: &mut Command) -> Result {
        let Some(log) = &self.0 else { return run(command) };
        let (reader, writer) = io::pipe()?;
        let tee = spawn(Command::new("tee").arg("-a").arg(log).stdin(reader))?;
        let child = spawn(command.stdout(writer.try_clone()?).stderr(writer));
        // tee reads until nothing holds the pipe's other end.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        wait(tee)?;
        wait(child?)
    }
}
