//! Tests the completion of VOLUME:/PATH. The scripts return the names in the volume in the form that the shells insert.

use std::path::Path;
use std::process::Command;

use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, IRONMAP, succeed, text, tool};

/// The output of `ironmap complete` for a word.
fn names(bench: &Bench, word: &str) -> Vec<String> {
    text(&bench.succeed(["complete", word])).lines().map(str::to_owned).collect()
}

/// A shell that runs in the directory of the image, and finds the program in its PATH.
fn shell(bench: &Bench, name: &str) -> Command {
    let mut shell = tool(name);
    let programs = Path::new(IRONMAP).parent().unwrap().display();
    shell.env("PATH", format!("{programs}:/usr/bin:/bin")).env("HOME", bench.dir.path());
    shell.current_dir(bench.dir.path());
    shell
}

/// A word is completed by the names that debugfs lists, with a slash after directories. Names with a leading dot are completed only after a dot.
#[test]
fn a_word_is_completed_by_the_names_of_its_directory() {
    let bench = Bench::new();
    assert_eq!(names(&bench, "image:/s"), ["image:/small", "image:/sparse"]);
    assert_eq!(names(&bench, "image:/di"), ["image:/dir/"]);
    let dir = ["again", "empty/", "large", "link"].map(|name| format!("image:/dir/{name}"));
    assert_eq!(names(&bench, "image:/dir/"), dir);
    assert_eq!(names(&bench, "image@0:/./dir/.h"), ["image@0:/./dir/.hidden"]);
    assert_eq!(names(&bench, "image:/none"), [""; 0]);
    // A newline separates the printed names. Therefore a name with a newline is not printed.
    assert_eq!(names(&bench, "image:/li"), [""; 0]);
    let listed = bench.ask("ls -p /");
    let listed = listed.lines().filter_map(|line| line.split('/').nth(5));
    let listed = listed.filter(|name| !name.is_empty() && !name.starts_with('.')).count();
    // debugfs prints the newline of this name unchanged. Its listing has an additional line without fields.
    assert_eq!(names(&bench, "image:/").len(), listed - 1);
    for wrong in ["image", "missing:/", "image:/small/"] {
        assert!(!bench.run(["complete", wrong]).status.success(), "{wrong}");
    }
}

/// bash splits words at the characters of COMP_WORDBREAKS. It replaces only the last part of the word by the result.
#[test]
fn bash_completes_names_in_a_volume() {
    require!([Need::Tool("bash")]);
    let bench = Bench::new();
    std::os::unix::fs::symlink("image", bench.path("a disk")).unwrap();
    let complete = |line: &str, words: &[&str]| {
        let script = "\
            source <(ironmap completions bash)
            COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=(\"${@:2}\") COMP_CWORD=$(($# - 2))
            _ironmap ironmap \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"
            printf '%s\\n' \"${COMPREPLY[@]}\"";
        let mut bash = shell(&bench, "bash");
        bash.args(["--norc", "-c", script, "bash", line]).args(words);
        let said = succeed(&mut bash);
        assert_eq!(text(&said.stderr), "", "{line}");
        text(&said.stdout)
    };
    let words = ["ironmap", "cat", "image", ":", "/di"];
    assert_eq!(complete("ironmap cat image:/di", &words), "/dir/\n");
    let words = ["ironmap", "cat", "image", ":", "/dir/l"];
    assert_eq!(complete("ironmap cat image:/dir/l", &words), "/dir/large\n/dir/link\n");
    let words = ["ironmap", "ls", "-l", "image", "@", "0", ":", "/sm"];
    assert_eq!(complete("ironmap ls -l image@0:/sm", &words), "/small\n");
    let words = ["ironmap", "cat", "~/image", ":", "/sm"];
    assert_eq!(complete("ironmap cat ~/image:/sm", &words), "/small\n");
    // White space is quoted in the result. The word to complete may contain white space.
    let words = ["ironmap", "cat", "a\\ disk", ":", "/no"];
    let found = complete("ironmap cat a\\ disk:/no", &words);
    assert_eq!(found, "$'/not utf-8 \\377%'\n/nothing\n");
    // The generated script itself completes everything else: commands, options, and files of the host.
    let commands = complete("ironmap c", &["ironmap", "c"]);
    assert!(commands.contains("cat\n") && commands.contains("chmod\n"), "{commands}");
    let host = complete("ironmap host host:/et", &["ironmap", "host", "host", ":", "/et"]);
    assert!(!host.contains("/etc"), "{host}");
}

/// zsh passes the complete word, and expects complete words as results.
#[test]
fn zsh_completes_names_in_a_volume() {
    require!([Need::Tool("zsh")]);
    let bench = Bench::new();
    let script = "\
        compdef() { }
        compadd() { print -r -- \"$@\"; false }
        eval \"$(ironmap completions zsh)\"
        words=(ironmap cat $1) PREFIX=$1
        _ironmap_names || print other";
    let complete = |word: &str| {
        let mut zsh = shell(&bench, "zsh");
        text(&succeed(zsh.args(["-fc", script, "zsh", word])).stdout)
    };
    assert_eq!(complete("image:/di"), "-S  -- image:/dir/\n--\n");
    assert_eq!(complete("image:/dir/l"), "-S  --\n-- image:/dir/large image:/dir/link\n");
    assert_eq!(complete("~/image:/sm"), "-S  --\n-- ~/image:/small\n");
    assert_eq!(complete("image:/none"), "-S  --\n--\n");
    assert_eq!(complete("host:/etc"), "other\n");
    assert_eq!(complete("image"), "other\n");
}

/// The script for fish also completes names in a volume.
#[test]
fn fish_completes_names_in_a_volume() {
    require!([Need::Tool("fish")]);
    let bench = Bench::new();
    let complete = |line: &str| {
        let script = format!("ironmap completions fish | source; complete -C '{line}'");
        text(&succeed(shell(&bench, "fish").args(["--no-config", "-c", &script])).stdout)
    };
    assert_eq!(complete("ironmap cat image:/di"), "image:/dir/\n");
    assert_eq!(complete("ironmap cat image:/dir/l"), "image:/dir/large\nimage:/dir/link\n");
}
