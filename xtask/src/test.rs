//! Every test, and the summary of what passed, failed and was skipped.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::process::Stdio;

use crate::shell::{Result, Status, Tee, WORKSPACE, command, fail, ironmap, say, target, variable};
use crate::{aarch64, beneath, ceph, deb, fio, foreign, lab, nightly, users, xfsprogs};

/// Runs them all, whatever those before came to. The arguments go to cargo test; `IRONMAP_SKIP_LOG` names the log of skips.
pub(crate) fn run(args: &[&str]) -> Result {
    let Some(skips) = variable("IRONMAP_SKIP_LOG") else {
        return fail("no IRONMAP_SKIP_LOG: tests start with ./x test");
    };
    fs::write(&skips, "")?;
    // Benches measure a release build. It has minutes for one processor, and so has the build of the tests, in a directory of its own; errors of that
    // one are shown when the tests are run.
    say("cargo build --release, and the tests");
    let mut building = command(&format!("cargo test {WORKSPACE} --no-run"));
    let building = building.args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let ironmap = ironmap();
    // It does not outlive a build that fails.
    let _ = building.and_then(|mut building| building.wait());
    let ironmap = ironmap?;
    let mut tests = command(&format!("cargo test {WORKSPACE} --no-fail-fast"));
    tests.args(args).env("IRONMAP_BIN", &ironmap);
    if let Some(images) = foreign::images()? {
        tests.env(foreign::VARIABLE, images);
    }
    if let Some(programs) = xfsprogs::programs()? {
        tests.env(xfsprogs::VARIABLE, programs);
    }

    let log = target("test.log");
    fs::write(&log, "")?;
    let tee = Tee(Some(log.clone()));
    say("cargo test");
    let mut steps = Steps::default();
    steps.add("cargo test", tee.run(&mut tests));
    if args.is_empty() {
        steps.add("layers beneath", beneath::short(&tee));
    }
    say("users");
    steps.add("users", users::run_all(&target("debug")));
    steps.add("miri", nightly::miri());
    steps.add("aarch64", aarch64::test(&aarch64::SHORT, &tee));
    steps.add("lab", lab::test(&tee, Some(&ironmap)));
    steps.add("ceph", ceph::test(&ironmap, "1"));
    steps.add("fio engine", fio::test(&ironmap));
    steps.add("debian package", deb::test());

    let log = fs::read(log)?;
    print!("{}", summary(&String::from_utf8_lossy(&log), &fs::read_to_string(skips)?));
    steps.result()
}

/// All steps have their turn; the failed ones are named at the end, where a reader looks first.
#[derive(Default)]
struct Steps {
    status: Status,
    failed: Vec<&'static str>,
}

impl Steps {
    fn add(&mut self, name: &'static str, step: Result) {
        if step.is_err() {
            self.failed.push(name);
        }
        self.status.add(step);
    }

    fn result(self) -> Result {
        if !self.failed.is_empty() {
            println!("failed steps: {}", self.failed.join(", "));
        }
        self.status.result()
    }
}

/// The summary of a log of tests and one of skips, the numbers last.
fn summary(tests: &str, skips: &str) -> String {
    let mut text = String::new();
    let skips: BTreeSet<_> = skips.lines().collect();
    if !skips.is_empty() {
        text += "\n== skipped here\n";
    }
    for skip in &skips {
        let _ = writeln!(text, "{skip}");
    }
    let failed = count(tests, "failed;");
    if failed > 0 {
        text += "\n== failed\n";
        let is_failed = |line: &&str| line.starts_with("test ") && line.ends_with(" FAILED");
        for line in tests.lines().filter(is_failed) {
            let _ = writeln!(text, "{line}");
        }
        text += &reasons(tests);
    }
    // A program that a signal ended has no result of its own.
    for line in tests.lines().filter(|line| line.contains("process didn't exit successfully")) {
        let _ = writeln!(text, "{line}");
    }
    // A skipped test returns early, which cargo counts as passed; a skipped part of a test has more than a name.
    let returned = skips.iter().filter(|skip| names_a_test(skip)).count();
    let passed = count(tests, "passed;").saturating_sub(returned);
    text + &format!("\n{passed} passed, {failed} failed, {} skipped\n", skips.len())
}

/// The output of each failed test, up to its backtrace. cargo test prints it after all tests of a program, far from the summary.
fn reasons(tests: &str) -> String {
    const LINES: usize = 30;
    const CHARS: usize = 300;
    let mut text = String::new();
    let mut left = 0;
    for line in tests.lines() {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            left = LINES;
        } else if line.starts_with("stack backtrace:") || line == "failures:" {
            left = 0;
        }
        if left > 0 {
            left -= 1;
            text.extend(line.chars().take(CHARS));
            text.push('\n');
        }
    }
    text
}

/// Adds up the numbers before a word in the lines "test result: ok. 3 passed; 0 failed; ..." of all test programs.
fn count(tests: &str, word: &str) -> usize {
    let results = tests.lines().filter_map(|line| line.strip_prefix("test result:"));
    let words = results.flat_map(|line| line.split(' ').zip(line.split(' ').skip(1)));
    words.filter(|pair| pair.1 == word).filter_map(|pair| pair.0.parse::<usize>().ok()).sum()
}

/// "SKIP suite::test: why", where the part of a test would be "SKIP suite::test, part: why".
fn names_a_test(skip: &str) -> bool {
    let name = skip.strip_prefix("SKIP ").and_then(|skip| skip.split_once(": "));
    name.is_some_and(|(name, _)| name.contains("::") && !name.contains([' ', ',']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_test_has_not_passed() {
        let tests = "test a::b ... ok\ntest result: ok. 3 passed; 0 failed; 0 ignored\n\
                     test c ... FAILED\n\nfailures:\n\n---- c stdout ----\nthread 'c' panicked\nstack backtrace:\n 1: f\n\
                     failures:\n    c\n\ntest result: FAILED. 4 passed; 1 failed; 0 ignored\n";
        let skips = "SKIP a::b: needs root\nSKIP miri: not installed\nSKIP a::b: needs root\n\
                     SKIP a::d, the kernel's part: needs root\n";
        assert_eq!(
            summary(tests, skips),
            "\n== skipped here\nSKIP a::b: needs root\nSKIP a::d, the kernel's part: needs root\n\
             SKIP miri: not installed\n\n== failed\ntest c ... FAILED\n---- c stdout ----\nthread 'c' panicked\n\n6 passed, 1 failed, 3 skipped\n"
        );
        assert_eq!(
            summary("test result: ok. 2 passed; 0 failed;", ""),
            "\n2 passed, 0 failed, 0 skipped\n"
        );
    }
}
