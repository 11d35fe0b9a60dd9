//! Runs system programs to their end, and checks their results.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Directories that contain system programs and that are often missing in the `PATH` of a user.
const SBIN: &str = "/usr/sbin:/sbin";

fn search_path() -> String {
    format!("{}:{SBIN}", std::env::var("PATH").unwrap_or_default())
}

/// The path of the program with this name.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&search_path()).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Runs a program to its end; any exit status is accepted.
pub(crate) fn output<A: AsRef<OsStr>>(program: &str, args: &[A]) -> Output {
    let path = find(program).unwrap_or_else(|| panic!("{program} is not installed: ./x setup"));
    // The language and the time zone are fixed, because the tests parse the output.
    let mut command = Command::new(path);
    command.args(args).stdin(Stdio::null()).env("PATH", search_path());
    command.env("LC_ALL", "C").env("TZ", "UTC");
    command.output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Runs a program that must succeed, and returns its standard output.
pub(crate) fn run<A: AsRef<OsStr>>(program: &str, args: &[A]) -> Vec<u8> {
    let output = output(program, args);
    assert!(output.status.success(), "{}", failure(program, args, &output));
    output.stdout
}

/// The message about a program that failed, with its output.
pub(crate) fn failure<A: AsRef<OsStr>>(program: &str, args: &[A], output: &Output) -> String {
    let args: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{program} {}: {}\n{out}{err}", args.join(" "), output.status)
}
