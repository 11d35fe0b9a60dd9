//! A test that runs itself once more in a process of its own: as another user, or watched.

use std::process::{Command, Output};

/// Tells the second process what it is to do.
const ROLE: &str = "IRONMAP_TEST_ROLE";

/// The role given to this process, if it is the second.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The name of a test of this program as its runner knows it, by its module.
pub(crate) fn name_of(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    }
}

/// Runs one test of this program again beneath a program such as `setpriv` or `strace`, with this role. It must succeed.
pub(crate) fn again(beneath: &[&str], program: &std::path::Path, test: &str, role: &str) -> String {
    let mut words = beneath.to_vec();
    let program = program.to_str().unwrap();
    words.extend([program, "--exact", test, "--nocapture", "--test-threads=1"]);
    let Output { status, stdout, stderr } =
        Command::new(words[0]).args(&words[1..]).env(ROLE, role).output().unwrap();
    let said = String::from_utf8_lossy(&stdout) + String::from_utf8_lossy(&stderr);
    assert!(status.success() && said.contains("1 passed"), "{words:?}, {role}:\n{said}");
    said.into_owned()
}
