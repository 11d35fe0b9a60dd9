//! The shell blocks of README.md, CONTRIBUTING.md and docs/ run unchanged. Each block has a mark, which docs/TESTING.md describes.

#[path = "../../../../tests/house/src/blocks.rs"]
mod blocks;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, IRONMAP, text};

const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The pages that have blocks with this mark, and the commands of these blocks.
fn pages(mark: &str) -> Vec<(PathBuf, String)> {
    let pages = blocks::pages(Path::new(WORKSPACE)).unwrap();
    let commands = |page: &PathBuf| {
        let source = fs::read_to_string(page).unwrap();
        let marked = blocks::blocks(&source).into_iter().filter(|block| block.mark == Some(mark));
        marked.map(|block| block.commands + "\n").collect::<String>()
    };
    let pages = pages.into_iter().map(|page| (page.clone(), commands(&page)));
    pages.filter(|(_, commands)| !commands.is_empty()).collect()
}

/// Runs commands in an empty directory.
fn run(page: &Path, commands: &str, shell: &[&str]) -> String {
    let bench = Bench::empty();
    let programs = Path::new(IRONMAP).parent().unwrap().display();
    let Output { status, stdout, stderr } = Command::new(shell[0])
        .args(&shell[1..])
        .args(["bash", "-euxo", "pipefail", "-c", commands])
        .env("PATH", format!("{programs}:/usr/sbin:/sbin:/usr/bin:/bin"))
        .current_dir(bench.dir.path())
        .output()
        .unwrap();
    assert!(status.success(), "{}: {}{}", page.display(), text(&stdout), text(&stderr));
    text(&stdout)
}

/// A user without root privileges runs the blocks, and gets the result that the page describes.
#[test]
fn the_blocks_for_users_run() {
    require!([Need::Tool("mkfs.ext4"), Need::Tool("fakeroot")]);
    let pages = pages(blocks::USER);
    assert!(pages.len() >= 4, "{pages:?}");
    for (page, commands) in pages {
        let shown = run(&page, &commands, &["env"]);
        assert!(!page.ends_with("README.md") || shown.contains("today"), "{shown}");
    }
}

/// The blocks for root run as described. They run in a separate mount namespace. When it ends, all mounts are removed, even after a
/// failure.
#[test]
fn the_blocks_for_root_run() {
    require!([Need::Root, Need::Tool("mkfs.ext4"), Need::Tool("unshare")]);
    let (first, pages) = (pages(blocks::USER), pages(blocks::ROOT));
    assert!(pages.len() >= 2, "{pages:?}");
    for (page, mut commands) in pages {
        if page.ends_with("README.md") {
            // On the first page, the blocks for root need the results of the blocks for users. Therefore both run in one directory.
            let first = first.iter().find(|(other, _)| *other == page);
            commands.insert_str(0, first.map_or("", |(_, commands)| commands));
        }
        let shown = run(&page, &commands, &["unshare", "--mount"]);
        let raw = shown.contains("mnt/table") && shown.contains("raw");
        assert!(!page.ends_with("README.md") || raw, "{shown}");
    }
}

/// Blocks that measure, or that take long, are not run. Their commands and options exist. `ironmap` can parse its arguments, and the help
/// of `./x` lists each of its commands.
#[test]
fn the_arguments_of_other_blocks_exist() {
    let help = Command::new("./x").arg("help").current_dir(WORKSPACE).output().unwrap();
    let help = text(&help.stdout);
    let mut parsed = 0;
    for (page, commands) in pages(blocks::ARGUMENTS) {
        for line in commands.lines() {
            let line = line.split(" #").next().unwrap_or(line);
            for command in line.split(['|', '&', ';']) {
                let words = command.split_whitespace().map(|word| word.trim_matches('\''));
                let words: Vec<_> = words.collect();
                let args = match &words[..] {
                    ["ironmap", args @ ..] => args,
                    ["./x", args @ ..] if args.first() == Some(&"bench") => args,
                    ["./x", name, ..] => {
                        let listed = help.lines().any(|line| {
                            line.strip_prefix("  ").is_some_and(|line| {
                                line.split(' ').next().is_some_and(|first| first == *name)
                            })
                        });
                        assert!(listed, "{}: {command}: ./x help lacks it", page.display());
                        continue;
                    }
                    _ => continue,
                };
                let output = Command::new(IRONMAP).args(args).arg("--help").output().unwrap();
                let problem = text(&output.stderr);
                assert!(output.status.success(), "{}: {command}: {problem}", page.display());
                parsed += 1;
            }
        }
    }
    assert!(parsed > 30, "{parsed} commands");
}
