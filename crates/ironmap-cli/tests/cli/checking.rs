//! Tests `check`: its findings and exit codes for sound and damaged volumes. The check never changes the volume.

use std::fs;
use std::process::Output;

use crate::support::{Bench, text, tool};
use serde_json::{Value, json};

/// Runs the check, which must not change the volume. Returns the output, and whether e2fsck finds a fault.
fn check(bench: &Bench, args: &[&str]) -> (Output, bool) {
    let before = fs::read(bench.image()).unwrap();
    let output = bench.run([&["check", "image"], args].concat());
    assert!(before == fs::read(bench.image()).unwrap(), "a check has changed the volume");
    let e2fsck = tool("e2fsck").arg("-fn").arg(bench.image()).output().unwrap();
    (output, e2fsck.status.code() != Some(0))
}

/// A number in the output of `dumpe2fs -h`.
fn of_superblock(bench: &Bench, field: &str) -> u64 {
    let header = crate::support::succeed(tool("dumpe2fs").arg("-h").arg(bench.image()));
    let header = text(&header.stdout);
    let line = header.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap().trim().parse().unwrap()
}

/// The check of a sound volume prints one line and ends with code 0. The line contains the number of blocks from the superblock.
#[test]
fn a_sound_volume_is_clean() {
    let bench = Bench::new();
    let (output, faults) = check(&bench, &[]);
    let blocks = of_superblock(&bench, "Block count") - of_superblock(&bench, "Free blocks");
    let said = text(&output.stdout);
    assert!(said.starts_with("image: clean; ") && said.lines().count() == 1, "{said}");
    assert!(said.ends_with(&format!(", {blocks} blocks in use\n")), "{said}");
    assert_eq!(
        (output.status.code(), text(&output.stderr), faults),
        (Some(0), String::new(), false)
    );
}

/// A note is printed, but it does not count as a fault.
#[test]
fn notes_are_no_faults() {
    let bench = Bench::new();
    let free = of_superblock(&bench, "Free blocks");
    bench.debugfs("ssv free_blocks_count 7");
    let (output, _) = check(&bench, &[]);
    let note = format!("note: superblock, s_free_blocks_count: 7, should be {free}\n");
    let said = text(&output.stdout);
    assert!(said.starts_with(&format!("{note}image: clean; ")), "{said}");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}

/// Each fault is printed as a line, followed by the verdict. The exit code is 4, as for every corrupt volume.
#[test]
fn each_fault_is_shown() {
    let bench = Bench::new();
    bench.debugfs("sif lost+found links_count 7");
    let (output, faults) = check(&bench, &[]);
    let said = text(&output.stdout);
    let fault = "repairable: inode 11: inode, i_links_count: 7 links, but 2 names\n";
    assert!(said.starts_with(&format!("{fault}image: not clean; ")), "{said}");
    assert_eq!(text(&output.stderr), "ironmap: image: 1 fault found\n");
    assert_eq!((output.status.code(), faults), (Some(4), true));
}

/// With --json, the output is a JSON object, with and without faults.
#[test]
fn faults_are_shown_as_json() {
    let bench = Bench::new();
    let parse = |output: &Output| serde_json::from_slice::<Value>(&output.stdout).unwrap();
    let (output, _) = check(&bench, &["--json"]);
    let sound = parse(&output);
    assert_eq!((&sound["clean"], &sound["findings"]), (&json!(true), &json!([])));
    assert_eq!(output.status.code(), Some(0));
    bench.debugfs("sif lost+found links_count 7");
    let (output, _) = check(&bench, &["--json"]);
    let damaged = parse(&output);
    assert_eq!(
        damaged["findings"],
        json!([{
            "severity": "repairable",
            "structure": "inode",
            "field": "i_links_count",
            "inode": 11,
            "kind": "link_count",
            "what": "7 links, but 2 names",
        }])
    );
    let counts = json!({ "note": 0, "repairable": 1, "data_loss": 0, "fatal": 0 });
    assert_eq!((&damaged["clean"], &damaged["counts"]), (&json!(false), &counts));
    assert_eq!((&damaged["inodes"], &damaged["volume"]), (&sound["inodes"], &json!("image")));
    assert_eq!(output.status.code(), Some(4));
}

/// A file without a volume gives another exit code than a volume with a fault.
#[test]
fn a_file_without_a_volume_is_not_checked() {
    let bench = Bench::empty();
    fs::write(bench.path("zeros"), [0; 1 << 16]).unwrap();
    for name in ["zeros", "missing"] {
        let output = bench.run(["check", name]);
        assert_eq!(
            (output.status.code(), text(&output.stdout)),
            (Some(3), String::new()),
            "{name}"
        );
        assert!(text(&output.stderr).starts_with(&format!("ironmap: {name}: ")), "{name}");
    }
}

/// For each inode without a name, the check prints a command that reads this inode. The text and the JSON contain the command. A shell can
/// run it even if the volume's name has special characters.
#[test]
fn the_command_that_reads_an_inode_without_a_name_does() {
    let bench = Bench::new();
    let number = |bench: &Bench, file: &str| {
        bench.ask(&format!("stat {file}")).split_whitespace().nth(1).unwrap().to_owned()
    };
    let files = ["dir/large", "dangling", "dir"].map(|file| (file, number(&bench, file)));
    for (file, _) in &files {
        bench.debugfs(&format!("unlink {file}"));
    }
    fs::rename(bench.image(), bench.path("an 'image'")).unwrap();
    let output = bench.run(["check", "an 'image'"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(4), "{said}");
    let json = bench.run(["check", "--json", "an 'image'"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    let command = |inode: &str| {
        let findings = json["findings"].as_array().unwrap().iter();
        let mut found = findings
            .filter(|finding| finding["kind"] == "unconnected")
            .filter(|finding| finding["inode"].as_u64() == inode.parse().ok());
        let command = found.next().unwrap()["command"].as_str().unwrap().to_owned();
        let read_by = format!("    read it by: {command}");
        assert!(said.lines().any(|line| line == read_by), "{read_by}: {said}");
        command
    };
    let run = |inode: &str| {
        let dir = std::path::Path::new(crate::support::IRONMAP).parent().unwrap();
        let path = format!("{}:/usr/bin:/bin", dir.display());
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", &command(inode)]).current_dir(bench.dir.path()).env("PATH", path);
        crate::support::succeed(&mut shell).stdout
    };
    let [large, dangling, dir] = files.map(|(_, inode)| inode);
    assert!(run(&large) == fs::read(bench.source().join("dir/large")).unwrap());
    assert!(text(&run(&dangling)).contains("symbolic link"));
    run(&dir);
    let copied = bench.path(&format!("inode-{dir}"));
    assert_eq!(fs::read(copied.join(".hidden")).unwrap(), b"hidden");
    // Only a finding about an inode without a name contains a command.
    for finding in json["findings"].as_array().unwrap() {
        assert_eq!(finding["kind"] == "unconnected", finding["command"].is_string(), "{finding}");
    }
}
