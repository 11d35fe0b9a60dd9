//! Every test, and the summary of what passed, failed and was skipped.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use crate::shell::{Result, Status, Tee, command, fail, ironmap, say, target, variable};
use crate::{beneath, deb, fio, foreign, lab, nightly, users};

/// Runs them all, whatever those before came to. The arguments go to cargo test; `IRONMAP_SKIP_LOG` names the log of skips.
pub(crate) fn run(args: &[&str]) -> Result {
    let Some(skips) = variable("IRONMAP_SKIP_LOG") else {
        return fail("no IRONMAP_SKIP_LOG: tests start with ./x test");
    };
    fs::write(&skips, "")?;
    // Benches measure a release build.
    say("cargo build --release");
    let ironmap = ironmap()?;
    let mut tests = command("cargo test --workspace --no-fail-fast");
    tests.args(args).env("IRONMAP_BIN", &ironmap);
    if let Some(images) = foreign::images()? {
        tests.env(foreign::VARIABLE, images);
    }

    let log = target("test.log");
    fs::write(&log, "")?;
    let tee = Tee(Some(log.clone()));
    say("cargo test");
    let mut status = Status::default();
    status.add(tee.run(&mut tests));
    if args.is_empty() {
        status.add(beneath::short(&tee));
    }
    say("users");
    status.add(users::run_all(&target("debug")));
    status.add(nightly::miri());
    status.add(lab::test(&tee));
    status.add(fio::test(&ironmap));
    status.add(deb::test());

    let log = fs::read(log)?;
    print!("{}", summary(&String::from_utf8_lossy(&log), &fs::read_to_string(skips)?));
    status.result()
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
    }
    // A skipped test returns early, which cargo counts as passed; a skipped part of a test has more than a name.
    let returned = skips.iter().filter(|skip| names_a_test(skip)).count();
    let passed = count(tests, "passed;").saturating_sub(returned);
    text + &format!("\n{passed} passed, {failed} failed, {} skipped\n", skips.len())
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
                     test c ... FAILED\ntest result: FAILED. 4 passed; 1 failed; 0 ignored\n";
        let skips = "SKIP a::b: needs root\nSKIP miri: not installed\nSKIP a::b: needs root\n\
                     SKIP a::d, the kernel's part: needs root\n";
        assert_eq!(
            summary(tests, skips),
            "\n== skipped here\nSKIP a::b: needs root\nSKIP a::d, the kernel's part: needs root\n\
             SKIP miri: not installed\n\n== failed\ntest c ... FAILED\n\n6 passed, 1 failed, 3 skipped\n"
        );
        assert_eq!(
            summary("test result: ok. 2 passed; 0 failed;", ""),
            "\n2 passed, 0 failed, 0 skipped\n"
        );
    }
}
