//! Rules for a single file. The number of lines is limited. Only certain files contain unsafe code. Tests do not sleep and are not ignored.
//! There are no marks of unfinished work.

use std::path::Path;

use proc_macro2::TokenStream;

use super::tokens::{starts_with, tokens, without_tests};

/// The maximum number of lines. A longer file usually contains more than one concept.
const MAX_LINES: usize = 600;

/// The files that may contain unsafe code. In the order of the list, the code is for: system calls, and memory shared with the kernel;
/// system calls of tests; a thread that overwrites memory in use; the C library; the C interface of fio; memory, forks and queues of
/// Python; a processor instruction.
const UNSAFE_ROOMS: [&str; 9] = [
    "src/sys",
    "tests/common/sys.rs",
    "tests/dio/stable/scribbler.rs",
    "crates/ironmap-capi",
    "crates/ironmap-fio",
    "crates/ironmap-python/src/buffer.rs",
    "crates/ironmap-python/src/process.rs",
    "crates/ironmap-python/src/queues.rs",
    "lab/reads/src/marker.rs",
];

/// The front ends, each with its files that may name ext4. These files contain ext4's options and structures, or benchmarks. All other
/// files use `fs::FileSystem`.
const FRONT_ENDS: [&str; 5] = [
    "crates/ironmap-cli/src",
    "crates/ironmap-capi/src",
    "crates/ironmap-fio/src",
    "crates/ironmap-image/src",
    "crates/ironmap-load/src",
];
const OF_EXT4: [&str; 10] = [
    "crates/ironmap-cli/src/bench/fixture.rs",
    "crates/ironmap-cli/src/cmd/dump.rs",
    "crates/ironmap-cli/src/cmd/info/ext4.rs",
    "crates/ironmap-cli/src/cmd/info/mod.rs",
    "crates/ironmap-cli/src/cmd/mkfs/mod.rs",
    "crates/ironmap-cli/src/cmd/tune/mod.rs",
    "crates/ironmap-image/src/image/build.rs",
    "crates/ironmap-image/src/image/fit.rs",
    "crates/ironmap-image/src/image/mod.rs",
    "crates/ironmap-image/src/source.rs",
];

/// Words that mark unfinished work. They are split so that this file does not violate the rule.
const MARKS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

pub(super) fn check(path: &Path, source: &str, stream: TokenStream) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let lines = source.lines().count();
    if lines > MAX_LINES {
        found.push((lines, format!("{lines} lines, more than {MAX_LINES}: split it by concept")));
    }
    for (line, text) in (1..).zip(source.lines()) {
        for mark in MARKS.iter().filter(|mark| has_word(text, mark)) {
            found.push((line, format!("{mark}: do it, or file an issue")));
        }
    }

    let is_front_end = FRONT_ENDS.iter().any(|front| path.starts_with(front));
    if is_front_end && !OF_EXT4.iter().any(|file| path == Path::new(file)) {
        let tokens = without_tests(stream.clone());
        let names_ext4 = |at: &usize| {
            tokens[*at].text.contains("Ext4") || starts_with(&tokens[*at..], &["ext4", "::"])
        };
        let found_here = (0..tokens.len()).filter(names_ext4);
        found.extend(found_here.map(|at| {
            (tokens[at].line, "a front end names ext4: see OF_EXT4 in tests/house".to_owned())
        }));
    }
    let unsafe_room = UNSAFE_ROOMS.iter().any(|room| path.starts_with(room));
    let tokens = tokens(stream);
    for at in 0..tokens.len() {
        let rest = &tokens[at..];
        let line = rest[0].line;
        if starts_with(rest, &["unsafe"]) && !unsafe_room {
            found.push((line, format!("unsafe outside {}", UNSAFE_ROOMS.join(", "))));
        }
        if starts_with(rest, &["thread", "::", "sleep"]) && path.starts_with("tests") {
            found.push((line, "a test sleeps: wait for the event itself".to_owned()));
        }
        if starts_with(rest, &["#", "[", "ignore"]) {
            found.push((
                line,
                "an ignored test: skip by name at run time (tests/common/skip.rs)".to_owned(),
            ));
        }
    }
    found
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, source: &str) -> Vec<(usize, String)> {
        check(Path::new(path), source, source.parse().expect("Rust"))
    }

    #[test]
    fn unsafe_code_has_its_rooms() {
        let source = "// unsafe is not used here\nfn f() { unsafe { g() } }";
        assert_eq!(findings("src/dio/simple.rs", source).first().map(|found| found.0), Some(2));
        assert_eq!(findings("src/sys/ring.rs", source), []);
        assert_eq!(findings("src/dio/simple.rs", "#![deny(unsafe_code)]"), []);
    }

    #[test]
    fn few_files_of_the_front_ends_name_ext4() {
        let source = "use ironmap::fs::ext4::Superblock;\nfn f(kind: FsKind::Ext4) {}\n\
                      #[cfg(test)] mod tests { use ironmap::fs::ext4::Ext4; }";
        let lines = |path| findings(path, source).iter().map(|found| found.0).collect::<Vec<_>>();
        assert_eq!(lines("crates/ironmap-cli/src/walk.rs"), [1, 2]);
        assert_eq!(lines(OF_EXT4[0]), []);
        assert_eq!(lines("src/volume/mod.rs"), []);
    }

    #[test]
    fn long_files_are_found() {
        assert_eq!(findings("src/a.rs", &"\n".repeat(MAX_LINES)), []);
        assert_eq!(findings("src/a.rs", &"\n".repeat(MAX_LINES + 1)).len(), 1);
    }

    #[test]
    fn tests_neither_sleep_nor_stay_ignored() {
        assert_eq!(findings("tests/a.rs", "std::thread::sleep(d);").len(), 1);
        assert_eq!(findings("src/device/sim.rs", "std::thread::sleep(d);"), []);
        assert_eq!(findings("src/a.rs", "\n#[ignore = \"slow\"]\nfn t() {}")[0].0, 2);
    }

    #[test]
    fn marks_are_found_in_comments_as_words() {
        let source = format!("// {}: later\nlet {}_list = 1;", MARKS[0], MARKS[0]);
        assert_eq!(findings("src/a.rs", &source).len(), 1);
    }
}
