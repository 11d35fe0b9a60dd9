//! Checks that each program in `examples/` does what its first comment says. The oracles are coreutils and debugfs.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use common::image::scratch;
use common::skip::Need;
use tempfile::TempDir;

/// A volume with two files: `/dir/data` with 700,000 bytes, and `/empty` without content.
fn image() -> (TempDir, String, Vec<u8>) {
    let dir = scratch();
    let source = dir.path().join("source");
    std::fs::create_dir_all(source.join("dir")).unwrap();
    let data: Vec<u8> = (0..700_000_u32).map(|at| (at / 7) as u8).collect();
    std::fs::write(source.join("dir/data"), &data).unwrap();
    std::fs::write(source.join("empty"), b"").unwrap();
    std::os::unix::fs::symlink("dir/data", source.join("link")).unwrap();
    let image = dir.path().join("image").to_str().unwrap().to_owned();
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-Fqt", "ext4", "-b", "4096", "-d"]).arg(&source).args([&image, "64M"]);
    assert!(mke2fs.output().unwrap().status.success());
    (dir, image, data)
}

/// Cargo builds the examples of a package before it runs the tests. The examples are in a directory next to the test programs.
fn example(name: &str) -> Command {
    let own = std::env::current_exe().unwrap();
    let target: &Path = own.ancestors().nth(2).unwrap();
    let program: PathBuf = target.join("examples").join(name);
    assert!(program.exists(), "{} was not built", program.display());
    Command::new(program)
}

fn run(name: &str, args: &[&str]) -> String {
    let Output { status, stdout, stderr } = example(name).args(args).output().unwrap();
    let told = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{name} {args:?}: {told}");
    String::from_utf8(stdout).unwrap()
}

fn fsck(image: &str) {
    let out = Command::new("e2fsck").args(["-fn", image]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

fn sum(data: &[u8]) -> String {
    let sum: u64 = data.iter().map(|byte| u64::from(*byte)).sum();
    format!("sum of all bytes: {sum}")
}

/// The example programs that read a volume print its content.
#[test]
fn readers_give_what_is_there() {
    require!([Need::Tool("mke2fs")]);
    let (_dir, image, data) = image();
    let listed = run("volume_reader", &[&image, "/dir"]);
    assert_eq!(listed, "data\n");
    let out = example("volume_reader").args([&image, "/link"]).output().unwrap();
    assert!(out.stdout == data);
    for (path, content) in [("/dir/data", &data[..]), ("/empty", &[])] {
        let text = run("deep_queue", &[&image, path]);
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some(&*sum(content)));
        let reads = format!("{} reads of 4096 bytes, ", content.len().div_ceil(4096));
        let rate = lines.next().unwrap_or_default();
        assert!(rate.starts_with(&reads) && rate.ends_with(" IOPS"), "{rate}");
    }
    let one = run("deep_queue", &[&image, "/dir/data", "1"]);
    assert_eq!(one.lines().next(), Some(&*sum(&data)));
    let failed = example("volume_reader").args([&image, "/none"]).output().unwrap();
    assert!(!failed.status.success() && failed.stdout.is_empty());
}

/// The front page of the documentation lists each program, with a link to its source. No program uses a hidden module.
#[test]
fn the_front_page_leads_to_each_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let page = read("src/lib.rs");
    let hidden: Vec<_> = page
        .lines()
        .zip(page.lines().skip(1))
        .filter(|(above, _)| *above == "#[doc(hidden)]")
        .filter_map(|(_, line)| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .collect();
    assert!(hidden.contains(&"device"), "{hidden:?}");
    let mut programs = 0;
    for entry in std::fs::read_dir(root.join("examples")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(page.contains(&format!("(../../../examples/{name}) ")), "{name} is not there");
        let source = read(&format!("examples/{name}"));
        for module in &hidden {
            assert!(!source.contains(&format!("ironmap::{module}::")), "{name}: {module}");
        }
        programs += 1;
    }
    assert_eq!(page.matches("(../../../examples/").count(), programs, "a program that is gone");
}

/// The example reads a file of a mounted file system. The read goes directly to the device, or through the kernel.
#[test]
fn a_host_file_is_read() {
    let dir = scratch();
    let path = dir.path().join("file");
    std::fs::write(&path, [3; 100_000]).unwrap();
    let text = run("host_reader", &[path.to_str().unwrap()]);
    assert!(
        text.starts_with("100000 bytes, read ") && text.contains(&sum(&[3; 100_000])),
        "{text}"
    );
}

/// The example and debugfs report the same extents and the same first byte of each block.
#[test]
fn extents_are_debugfs() {
    require!([Need::Tool("mke2fs"), Need::Tool("debugfs")]);
    let (_dir, image, _) = image();
    let text = run("extents", &[&image, "/dir/data"]);
    let at = text.lines().next().and_then(|line| line.rsplit_once(' ')).unwrap().1;
    let out = Command::new("debugfs").args(["-R", "bmap /dir/data 0", &image]).output().unwrap();
    let block: u64 = String::from_utf8(out.stdout).unwrap().trim().parse().unwrap();
    assert_eq!(at.parse::<u64>().unwrap(), block * 4096, "{text}");
}

/// The example copies a tree into the volume. The copy can be read, and e2fsck finds no fault.
#[test]
fn a_tree_is_copied_in() {
    require!([Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs")]);
    let (dir, image, data) = image();
    let source = dir.path().join("source");
    let text = run("copy_tree", &[&image, source.to_str().unwrap(), "/copied/tree"]);
    assert_eq!(text, "2 files\n");
    fsck(&image);
    let out = Command::new("debugfs").args(["-R", "cat /copied/tree/dir/data", &image]).output();
    assert!(out.unwrap().stdout == data);
}

/// The log contains every record whose number was printed before SIGKILL. If the program runs again, it continues after the last record.
#[test]
fn a_log_survives_a_kill() {
    require!([Need::Tool("mke2fs"), Need::Tool("e2fsck")]);
    let (_dir, image, _) = image();
    let mut told = 0;
    for round in 0..3 {
        let mut writer: Child = example("log_writer")
            .args([&image, "/log", "1000000"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = std::io::BufRead::lines(std::io::BufReader::new(writer.stdout.take().unwrap()));
        let mut lines = lines.map(Result::unwrap);
        let found = lines.next().unwrap();
        let found: u64 = found.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(found >= told, "round {round}: {found} of {told} records");
        told = lines.nth(20).unwrap().parse::<u64>().unwrap() + 1;
        writer.kill().unwrap();
        told = told.max(lines.last().map_or(told, |last| last.parse::<u64>().unwrap_or(0) + 1));
        writer.wait().unwrap();
    }
    let text = run("log_writer", &[&image, "/log", "3"]);
    assert!(text.lines().count() == 4, "{text}");
    fsck(&image);
}

/// The example finds sectors that do not match their tags (checksums).
#[test]
fn wrong_sectors_are_found() {
    require!([Need::Tool("mke2fs")]);
    let (dir, image, data) = image();
    let tags = dir.path().join("tags").to_str().unwrap().to_owned();
    std::fs::File::create(&tags).unwrap().set_len(16 << 20).unwrap();
    let open = |path: &str| {
        let options = ironmap::location::LocationOptions::new().write(true);
        path.parse::<ironmap::Location>().unwrap().open(&options).unwrap().device
    };
    let options = ironmap::integrity::FormatOptions::default();
    let (data_device, tag_device) = (open(&image), open(&tags));
    ironmap::integrity::format(&data_device, Some(&tag_device), &options, &mut |_, _| {}).unwrap();
    drop((data_device, tag_device));
    let text = run("verified_sectors", &[&image, &tags]);
    assert!(text.contains("/dir\n") && text.contains(", 0 faults"), "{text}");
    // The test changes one byte of the file and does not update the tag (checksum) of its sector.
    let bytes = std::fs::read(&image).unwrap();
    let at = bytes.windows(64).position(|window| *window == data[..64]).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[data[0] ^ 1], at as u64).unwrap();
    let text = run("verified_sectors", &[&image, &tags]);
    assert!(text.contains("guard") && text.contains(", 1 faults"), "{text}");
}
