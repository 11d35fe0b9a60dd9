//! Lets a test run itself a second time in a new process. The second process runs as another user, or under a program such as strace.

use std::process::{Command, Output};

/// The environment variable that contains the role of the second process. A role is a text that the test chooses.
const ROLE: &str = "IRONMAP_TEST_ROLE";

/// The role of this process. `None` if it is not the second process.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The name of a test in this program, including its module, as the test runner prints it.
pub(crate) fn name_of(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    }
}

/// Runs one test of this program again, in a process with the given role, under a program such as `setpriv` or `strace`. The test must
/// succeed.
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
