//! Counts passed, failed and skipped tests, and makes a summary.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Makes the summary of a test log and a skip log. The totals come last.
pub(crate) fn summary(tests: &str, skips: &str) -> String {
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
    // If a signal ends a test program, the program prints no result for its tests.
    for line in tests.lines().filter(|line| line.contains("process didn't exit successfully")) {
        let _ = writeln!(text, "{line}");
    }
    // A skipped test returns early, and cargo counts it as passed. If only a part of a test is skipped, the test does not return early. In
    // this case, the skip line contains more than the test's name.
    let returned = skips.iter().filter(|skip| names_a_test(skip)).count();
    let passed = count(tests, "passed;").saturating_sub(returned);
    text + &format!("\n{passed} passed, {failed} failed, {} skipped\n", skips.len())
}

/// The output of each failed test, up to its backtrace. cargo test prints this output after all tests of a program, far from the summary.
/// So the summary repeats it.
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

/// Adds up the numbers that stand before a word in the lines "test result: ok. 3 passed; 0 failed; ...". Includes the lines of all test
/// programs.
fn count(tests: &str, word: &str) -> usize {
    let results = tests.lines().filter_map(|line| line.strip_prefix("test result:"));
    let words = results.flat_map(|line| line.split(' ').zip(line.split(' ').skip(1)));
    words.filter(|pair| pair.1 == word).filter_map(|pair| pair.0.parse::<usize>().ok()).sum()
}

/// Whether a line reports that a complete test was skipped ("SKIP suite::test: why"). A line for a part of a test has the form "SKIP
/// suite::test, part: why".
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
