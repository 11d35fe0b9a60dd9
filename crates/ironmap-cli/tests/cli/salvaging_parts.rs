//! The report of `ironmap salvage` about inodes with a wrong checksum and files with a damaged map, and a report for which the host has no
//! space. Also the verdict of `check` on a truncated volume.

use std::fs::{self, File};

use serde_json::Value;

use crate::common::full_disk::Tmpfs;
use crate::common::image::{Image, scratch, words};
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, text};

fn made(size: &str, options: &str, files: &[(&str, Vec<u8>)]) -> Image {
    let tree = scratch();
    fs::create_dir(tree.path().join("dir")).unwrap();
    for (name, content) in files {
        fs::write(tree.path().join(name), content).unwrap();
    }
    Image::populated(size, &words(options), tree.path())
}

/// Salvages a volume. Returns the lines of the report by path, the exit code, and the messages.
fn salvaged(bench: &Bench, image: &Image) -> (Vec<Value>, i32, String) {
    let out = bench.path("out");
    let ended = bench.run(["salvage", image.path().to_str().unwrap(), out.to_str().unwrap()]);
    let report = fs::read_to_string(out.join("report.jsonl")).unwrap();
    let lines = report.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (lines, ended.status.code().unwrap(), text(&ended.stderr))
}

fn line<'a>(lines: &'a [Value], path: &str) -> &'a Value {
    lines.iter().find(|line| line["path"] == path).unwrap_or_else(|| panic!("{path}: {lines:?}"))
}

/// The block and the offset of an inode.
fn place(image: &Image, path: &str) -> (u64, u64) {
    let shown = image.ask_debugfs(&format!("imap {path}\n"));
    let word = |after: &str| {
        let (_, rest) = shown.split_once(after).unwrap_or_else(|| panic!("{shown}"));
        let end = rest.find(|char: char| !char.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let (text, radix) = match rest[..end].strip_prefix("0x") {
            Some(hex) => (hex, 16),
            None => (&rest[..end], 10),
        };
        u64::from_str_radix(text, radix).unwrap()
    };
    (word("located at block "), word("offset "))
}

/// A file and a directory whose inodes have a wrong checksum are copied, and the report says so. Other commands refuse them.
#[test]
fn a_wrong_checksum_of_an_inode_is_in_the_report() {
    let content = pattern(5000, 1);
    let files = [("dir/file", content.clone()), ("sound", content.clone())];
    let image = made("8M", "-t ext4 -b 1024 -O metadata_csum -I 256", &files);
    // debugfs finds no file below a directory whose inode has a wrong checksum.
    for (block, at) in ["/dir", "/dir/file"].map(|path| place(&image, path)) {
        image.poke_block(block, at + 0x7C, &[0xA5, 0x5A]);
    }
    let bench = Bench::empty();
    let (lines, code, stderr) = salvaged(&bench, &image);
    assert_eq!(code, 4, "{stderr}");
    for (path, state) in [("/dir", "whole"), ("/dir/file", "part")] {
        let line = line(&lines, path);
        assert_eq!(line["state"], state, "{line}");
        assert!(line["note"].as_str().unwrap().contains("checksum"), "{line}");
    }
    assert!(line(&lines, "/sound")["note"].is_null());
    assert_eq!(stderr.matches("its fields are plausible").count(), 2, "{stderr}");
    assert!(fs::read(bench.path("out/tree/dir/file")).unwrap() == content);
    let read = bench.run(["cat", &format!("{}:/dir/file", image.path().display())]);
    assert_eq!(read.status.code(), Some(4));
}

/// If the host has no space for the report, the report ends with a complete line, and the command says how many lines are missing.
#[test]
fn a_report_without_space_ends_with_a_complete_line() {
    require!([Need::Root]);
    let names: Vec<String> = (0..3000).map(|number| format!("dir/name-{number:0>60}")).collect();
    let files: Vec<_> = names.iter().map(|name| (&**name, Vec::new())).collect();
    let image = made("16M", "-t ext4 -b 1024 -N 4000", &files);
    let bench = Bench::empty();
    let host = Tmpfs::new(1);
    // Leaves space for a part of the report that is not a whole number of lines.
    fs::write(host.path().join("filler"), vec![1; 700 << 10]).unwrap();
    let out = host.path().join("out");
    let ended = bench.run(["salvage", image.path().to_str().unwrap(), out.to_str().unwrap()]);
    let (stderr, report) =
        (text(&ended.stderr), fs::read_to_string(out.join("report.jsonl")).unwrap());
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    assert!(report.ends_with('\n') && report.len() > 100_000, "{} bytes", report.len());
    let lines: Vec<Value> =
        report.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let missing = names.len() - lines.len();
    let told = format!("the report is incomplete: {missing} lines are missing");
    assert!(missing > 0 && stderr.contains(&told), "{told}: {stderr}");
}

/// A truncated volume is not clean, even if only free space is missing. The findings name the end of the device and the lost metadata.
#[test]
fn a_truncated_volume_is_not_clean() {
    let content = pattern(5000, 3);
    for options in ["-t ext4 -b 1024 -g 4096 -O ^flex_bg", "-t ext4 -b 4096", "-t ext2 -b 1024"] {
        for size in [9 << 20, (16 << 20) - 4096] {
            let image = made("16M", options, &[("file", content.clone())]);
            let path = image.path();
            File::options().write(true).open(&path).unwrap().set_len(size).unwrap();
            let bench = Bench::empty();
            let ended = bench.run(["check", "--truncated", path.to_str().unwrap()]);
            let stdout = text(&ended.stdout);
            assert_eq!(ended.status.code(), Some(4), "{options}, {size}: {stdout}");
            let told = format!("the device ends at byte {size}");
            assert!(stdout.contains(&told), "{options}, {size}: {stdout}");
            if options.contains("-g 4096") && size == 9 << 20 {
                assert!(stdout.contains("group 3: block bitmap"), "{options}, {size}: {stdout}");
                assert!(stdout.contains("group 3: inode table"), "{options}, {size}: {stdout}");
            }
        }
    }
}
