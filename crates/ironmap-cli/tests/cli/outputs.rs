//! Tests standard output that is full, and standard output that is a closed pipe. The exit code still gives the result. No output
//! overwrites a source.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::process::{Output, Stdio};

use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, IRONMAP, succeed, text, tool};

const FAST: [&str; 4] = ["--runtime", "0.01", "--rounds", "1"];

fn to(bench: &Bench, args: &[&str], stdout: impl Into<Stdio>) -> Output {
    bench.command().args(args).stdout(stdout).output().unwrap()
}

fn to_full(bench: &Bench, args: &[&str]) -> Output {
    to(bench, args, File::create("/dev/full").unwrap())
}

fn to_nobody(bench: &Bench, args: &[&str]) -> Output {
    let (_, writer) = std::io::pipe().unwrap();
    to(bench, args, writer)
}

/// If standard output is full, the command fails with one line. coreutils do the same.
#[test]
fn a_full_standard_output_is_an_error() {
    let bench = Bench::new();
    let measure = [&["bench"], &FAST[..], &["null:1M"]].concat();
    let as_json = [&measure[..], &["--json", "-"]].concat();
    let commands: [&[&str]; 8] = [
        &["--help"],
        &["--version"],
        &["ls", "--help"],
        &["ls", "image:/"],
        &["check", "image"],
        &["diff", "image:/", "image:/dir"],
        &measure,
        &as_json,
    ];
    for args in commands {
        let output = to_full(&bench, args);
        let said = text(&output.stderr);
        assert_eq!(said, "ironmap: standard output: No space left on device\n", "{args:?}");
        assert_eq!(output.status.code(), Some(1), "{args:?}");
    }
}

/// If the reader of the output has closed its pipe, the command does not fail. An exit code that reports a result (as with `check`) stays
/// the same.
#[test]
fn a_verdict_needs_no_reader() {
    let bench = Bench::new();
    fs::copy(bench.image(), bench.path("other")).unwrap();
    bench.debugfs("set_inode_field <2> links_count 77");
    let measure = [&["bench"], &FAST[..], &["null:1M"]].concat();
    let commands: [(&[&str], i32); 7] = [
        (&["--help"], 0),
        (&["ls", "other:/"], 0),
        (&measure, 0),
        (&["check", "other"], 0),
        (&["check", "image"], 4),
        (&["check", "--json", "image"], 4),
        (&["diff", "other:/", "other:/dir"], 1),
    ];
    for (args, code) in commands {
        let output = to_nobody(&bench, args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output.stderr));
    }
}

/// For `tar -f`, `-` is standard output, as in other implementations of tar.
#[test]
fn an_archive_named_dash_is_standard_output() {
    let bench = Bench::new();
    let archive = bench.succeed(["tar", "-f", "-", "image:/dir"]);
    assert!(archive == bench.succeed(["tar", "image:/dir"]) && archive.len() >= 10240);
    assert!(!bench.path("-").exists());
}

/// The results of a bench do not overwrite a measured file, or the file of a measured volume.
#[test]
fn results_are_not_written_over_a_target() {
    let bench = Bench::new();
    let before = fs::read(bench.image()).unwrap();
    std::os::unix::fs::symlink("image", bench.path("link")).unwrap();
    for target in
        ["raw:image", "raw:./image@4096", "kernel:image", "vol:image:/small", "host:image"]
    {
        for option in [["--json", "image"], ["--plot", "link"]] {
            let args = [&["bench"], &FAST[..], &option, &[target]].concat();
            let output = bench.run(&args);
            let said = text(&output.stderr);
            assert!(
                said.contains("contains the target") && said.lines().count() == 1,
                "{args:?}: {said}"
            );
            assert_eq!(output.status.code(), Some(1), "{args:?}");
        }
    }
    assert!(before == fs::read(bench.image()).unwrap());
}

/// The bench ends before its work in three cases. A result file cannot be written. A result file contains a volume. The name of a picture
/// has the extension of another format.
#[test]
fn results_that_cannot_be_written_end_the_bench_at_once() {
    let bench = Bench::new();
    let before = fs::read(bench.image()).unwrap();
    fs::create_dir(bench.path("dir")).unwrap();
    for (option, code, says) in [
        (["--plot", "plot.png"], 2, "write plot.svg"),
        (["--plot", "none/plot.svg"], 1, "No such file or directory"),
        (["--json", "none/json"], 1, "No such file or directory"),
        (["--json", "dir"], 1, "Is a directory"),
        (["--json", "image"], 3, "name another file for the results"),
        (["--plot", "image"], 3, "name another file for the results"),
    ] {
        let began = std::time::Instant::now();
        let output = bench.run([&["bench", "--runtime", "60", "null:1M"], &option[..]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{option:?}: {said}");
        assert!(said.contains(says) && said.lines().count() == 1, "{option:?}: {said}");
        assert!(began.elapsed().as_secs() < 30, "{option:?}");
    }
    assert!(before == fs::read(bench.image()).unwrap());
    let names = fs::read_dir(bench.path(".")).unwrap();
    let parts = names
        .filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().ends_with(".part"));
    assert_eq!(parts.count(), 0);
}

/// A result is written to the named file, even if no new file can replace it. Examples are a standard output without a name, a file with
/// several names, the target of a symbolic link, and a mount point.
#[test]
fn a_result_goes_into_the_file_that_was_named() {
    let bench = Bench::new();
    let measure = [&["bench"], &FAST[..], &["null:1M", "--json"]].concat();
    let run = |target: &str, stdout: Stdio| {
        let output = to(&bench, &[&measure[..], &[target]].concat(), stdout);
        assert!(output.status.success(), "{target}: {}", text(&output.stderr));
    };
    let has_result = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("\"results\"");

    let mut unnamed = tempfile::tempfile().unwrap();
    unnamed.write_all(b"before\n").unwrap();
    run("/dev/stdout", unnamed.try_clone().unwrap().into());
    assert!(fs::symlink_metadata("/dev/stdout").unwrap().is_symlink());
    let mut content = Vec::new();
    unnamed.rewind().unwrap();
    unnamed.read_to_end(&mut content).unwrap();
    assert!(content.starts_with(b"before\n") && has_result(&content));

    fs::write(bench.path("one"), "old").unwrap();
    fs::hard_link(bench.path("one"), bench.path("two")).unwrap();
    run("one", Stdio::null());
    assert!(has_result(&fs::read(bench.path("two")).unwrap()));

    std::os::unix::fs::symlink("target", bench.path("link")).unwrap();
    run("link", Stdio::null());
    assert!(
        bench.path("link").is_symlink() && has_result(&fs::read(bench.path("target")).unwrap())
    );

    require!([Need::Root]);
    fs::write(bench.path("mounted"), "").unwrap();
    let script = "mount --bind one mounted && exec \"$@\"";
    let mut command = std::process::Command::new("unshare");
    command.current_dir(bench.path(".")).args(["-m", "sh", "-ec", script, "sh", IRONMAP]);
    fs::write(bench.path("one"), "old").unwrap();
    let output = command.args(&measure).arg("mounted").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(has_result(&fs::read(bench.path("one")).unwrap()));
    let names = fs::read_dir(bench.path(".")).unwrap().flatten();
    let mut parts = names.filter(|name| name.file_name().to_string_lossy().ends_with(".part"));
    assert!(parts.next().is_none());
}

/// Commands write their output (results, archives, and copies that replace a file) under a temporary name. The content is durable before
/// the file gets its final name. The names of results and archives are durable too.
#[test]
fn a_file_is_durable_before_it_has_its_name() {
    require!([Need::Tool("strace")]);
    let bench = Bench::new();
    fs::write(bench.path("old"), "old").unwrap();
    fs::write(bench.path("a.json"), "old").unwrap();
    let measure =
        [&["bench"], &FAST[..], &["null:1M", "--json", "a.json", "--plot", "a.svg"]].concat();
    // The command, the number of files that it writes, and whether the names of these files are durable.
    let commands: [(&[&str], usize, bool); 4] = [
        (&["tar", "-f", "new.tar", "image:/dir"], 1, true),
        (&["tar", "-f", "new.tar", "image:/small"], 1, true),
        (&measure, 2, true),
        (&["cp", "image:/small", "old"], 1, false),
    ];
    for (args, files, named) in commands {
        let mut strace = tool("strace");
        strace.args(["-f", "-y", "-e", "signal=none", "-o", "log", "-e"]);
        strace.args(["trace=fsync,fdatasync,rename,renameat,renameat2"]).arg(IRONMAP).args(args);
        succeed(strace.current_dir(bench.path(".")));
        let log = fs::read_to_string(bench.path("log")).unwrap();
        let lines: Vec<_> = log.lines().collect();
        let renames = (0..lines.len()).filter(|at| lines[*at].contains("rename"));
        let renames: Vec<_> = renames.collect();
        assert_eq!(renames.len(), files, "{args:?}: {log}");
        for at in renames {
            let begin = lines[at].find(".ironmap-").unwrap();
            let part = lines[at][begin..].split('"').next().unwrap();
            let synced = |line: &&str| line.contains("sync(") && line.contains(part);
            assert!(lines[..at].iter().any(synced), "{args:?}: {log}");
            let dir = format!("{}>)", bench.dir.path().display());
            let is_dir = |line: &&str| line.contains("sync(") && line.contains(&dir);
            assert!(!named || lines[at..].iter().any(is_dir), "{args:?}: {log}");
        }
    }
}

/// The devices of a journal and of realtime files also belong to the source. They are not overwritten.
#[test]
fn further_devices_of_a_source_are_not_written_over() {
    let bench = Bench::new();
    let before = vec![7; 1 << 20];
    fs::write(bench.path("further"), &before).unwrap();
    for option in ["--journal", "--realtime"] {
        let commands: [&[&str]; 3] = [
            &["tar", "-f", "further", "image:/"],
            &["cp", "image:/small", "further"],
            &["bench", "--json", "further", "vol:image:/small"],
        ];
        for args in commands {
            let output = bench.run([&[option, "further"], args].concat());
            assert!(!output.status.success(), "{option} {args:?}");
            assert!(fs::read(bench.path("further")).unwrap() == before, "{option} {args:?}");
        }
    }
}

/// Commands that change files complete their work even if the reader of `-v` has closed the output.
#[test]
fn work_goes_on_without_a_reader() {
    let bench = Bench::new();
    bench.succeed(["mkdir", "-p", "image:/tree/a/b"]);
    for name in 0..40 {
        bench.succeed(["touch", &format!("image:/tree/a/{name}")]);
    }
    for args in [&["chmod", "-Rv", "700", "image:/tree"][..], &["chown", "-Rv", "5", "image:/tree"]]
    {
        assert_eq!(to_nobody(&bench, args).status.code(), Some(0), "{args:?}");
    }
    let found = bench.succeed(["find", "image:/tree", "-perm", "700", "-uid", "5"]);
    assert_eq!(text(&found).lines().count(), 43);
    assert_eq!(to_nobody(&bench, &["rm", "-rv", "image:/tree"]).status.code(), Some(0));
    assert_eq!(bench.run(["stat", "image:/tree"]).status.code(), Some(1));
}

/// If standard error is full, the exit code for wrong arguments does not change.
#[test]
fn a_full_standard_error_changes_no_exit_code() {
    let bench = Bench::new();
    let commands: [(&[&str], i32); 3] = [(&["--bogus"], 2), (&[], 2), (&["cat", "image:/none"], 1)];
    for (args, code) in commands {
        let full = File::create("/dev/full").unwrap();
        let output = bench.command().args(args).stderr(full).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}");
    }
}

/// The exit codes of `integrity check` and `integrity scrub` do not depend on the reader of the output.
#[test]
fn a_verdict_on_an_integrity_device_needs_no_reader() {
    let bench = Bench::empty();
    File::create(bench.path("device")).unwrap().set_len(8 << 20).unwrap();
    bench.succeed(["integrity", "format", "device"]);
    let damaged = File::options().write(true).open(bench.path("device")).unwrap();
    let scrub = &["integrity", "scrub", "integrity:device"][..];
    assert_eq!(to_nobody(&bench, scrub).status.code(), Some(0));
    std::os::unix::fs::FileExt::write_all_at(&damaged, &[1; 4096], 4 << 20).unwrap();
    assert_eq!(bench.run(scrub).status.code(), Some(4));
    for args in [scrub, &["integrity", "scrub", "--json", "integrity:device"]] {
        assert_eq!(to_nobody(&bench, args).status.code(), Some(4), "{args:?}");
    }
}

/// `ln` does not replace a file by a symbolic link that would lead to this file.
#[test]
fn no_new_link_replaces_the_file_that_it_leads_to() {
    let bench = Bench::new();
    for [text, link] in
        [["small", "image:/small"], ["/small", "image:/small"], ["../small", "image:/small"]]
    {
        let output = bench.run(["ln", "-sf", text, link]);
        assert_eq!(output.status.code(), Some(1), "{text} {link}");
    }
    assert_eq!(text(&bench.succeed(["cat", "image:/small"])), "small\n");
    bench.succeed(["ln", "-sf", "dir/large", "image:/small"]);
}
