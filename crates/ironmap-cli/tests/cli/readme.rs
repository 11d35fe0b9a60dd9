//! The commands that README.md shows run as they stand there.

use crate::require;
use std::fs;
use std::process::Command;

use crate::common::skip::Need;
use crate::support::{Bench, IRONMAP, text};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");

/// The shell commands after the line `<!-- tested: MARK -->`.
fn commands(mark: &str) -> String {
    let page = fs::read_to_string(README).unwrap();
    let after = page.split_once(&format!("<!-- tested: {mark} -->\n```sh\n")).expect("the mark").1;
    after.split_once("\n```").expect("the end of the block").0.to_owned()
}

/// Runs a block in an empty directory. A mount namespace of its own takes mounts with it, also after a failure.
fn run(mark: &str, shell: &[&str]) -> String {
    let bench = Bench::empty();
    let programs = std::path::Path::new(IRONMAP).parent().unwrap().display();
    let output = Command::new(shell[0])
        .args(&shell[1..])
        .args(["bash", "-euo", "pipefail", "-c", &commands(mark)])
        .env("PATH", format!("{programs}:/usr/sbin:/sbin:/usr/bin:/bin"))
        .current_dir(bench.dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// A reader who copies the block without root gets what it promises.
#[test]
fn the_block_for_users_runs() {
    let shown = run("user", &["env"]);
    assert!(shown.contains("today"), "{shown}");
}

/// The same as root: a host file is read raw beside the kernel, and the device is free afterwards.
#[test]
fn the_block_for_root_runs() {
    require!([Need::Root, Need::Tool("mkfs.ext4"), Need::Tool("unshare")]);
    let shown = run("root", &["unshare", "--mount"]);
    assert!(shown.contains("mnt/table") && shown.contains("raw"), "{shown}");
}
