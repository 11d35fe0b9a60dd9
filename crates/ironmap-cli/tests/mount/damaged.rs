//! Mounts of damaged volumes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::sides::{Kernels, Ours, check, require_mounts, unmount};
use crate::support::{Bench, pattern, succeed, tool};

const EUCLEAN: i32 = 117;
const EILSEQ: i32 = 84;

fn volume(requests: &[&str]) -> Bench {
    let bench = Bench::empty();
    succeed(tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("64M"));
    for request in requests {
        bench.debugfs(request);
    }
    bench
}

/// A name that leads to the journal's inode does not open the journal, even after a listing.
#[test]
fn the_journal_cannot_be_opened_by_a_name() {
    require_mounts!("the_journal_cannot_be_opened_by_a_name");
    let bench = volume(&["link <8> journal"]);
    let dir = bench.path("mounted");
    let ours = Ours::mount(&bench.image(), &dir, "rw");
    // The reply to a listing (READDIRPLUS) also gives the kernel the inodes of the names, so the later open needs no lookup.
    let _ = fs::read_dir(&dir).unwrap().count();
    let opened = File::options().write(true).truncate(true).open(dir.join("journal"));
    assert_eq!(opened.unwrap_err().raw_os_error(), Some(EUCLEAN));
    ours.unmount();
    bench.debugfs("unlink journal");
    check(&bench.image());
}

/// If an inode cannot be read, all other names are still listed. The name of this inode is listed with its type. Each use of this name
/// returns the error.
#[test]
fn a_damaged_inode_hides_no_names() {
    require_mounts!("a_damaged_inode_hides_no_names");
    let bench = volume(&[
        "write /dev/null a",
        "mkdir bad",
        "write /dev/null c",
        "link <8> journal",
        "clri bad",
    ]);
    let dir = bench.path("mounted");
    let ours = Ours::mount(&bench.image(), &dir, "ro");
    for _ in 0..2 {
        let mut listed = Vec::new();
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let known = entry.metadata().map(|_| ()).map_err(|error| error.raw_os_error());
            let name = entry.file_name().into_string().unwrap();
            listed.push((name, entry.file_type().unwrap().is_dir(), known));
        }
        listed.sort();
        let expected = [
            ("a", false, Ok(())),
            ("bad", true, Err(Some(EUCLEAN))),
            ("c", false, Ok(())),
            ("journal", false, Err(Some(EUCLEAN))),
            ("lost+found", true, Ok(())),
        ];
        assert_eq!(listed, expected.map(|(name, dir, known)| (name.to_owned(), dir, known)));
    }
    ours.unmount();
}

/// If a block of a directory is damaged, only the names in this block are lost. The kernel's listing is the same.
#[test]
fn a_damaged_block_loses_its_own_names() {
    require_mounts!("a_damaged_block_loses_its_own_names");
    let bench = Bench::empty();
    let many = bench.path("source/many");
    fs::create_dir_all(&many).unwrap();
    for number in 0..200 {
        File::create(many.join(format!("a rather long name {number}"))).unwrap();
    }
    let mke2fs = ["-qF", "-t", "ext4", "-b", "1024", "-O", "^dir_index", "-d"];
    succeed(tool("mke2fs").args(mke2fs).arg(bench.source()).arg(bench.image()).arg("64M"));
    let block: u64 = bench.ask("bmap many 3").trim().parse().unwrap();
    let image = File::options().write(true).open(bench.image()).unwrap();
    image.write_all_at(&[0xff; 1024], block * 1024).unwrap();
    let dir = bench.path("mounted");
    let listed = || {
        let entries = fs::read_dir(dir.join("many")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort_unstable();
        names
    };
    let ours = Ours::mount(&bench.image(), &dir, "ro");
    let names = listed();
    ours.unmount();
    let kernels = Kernels::mount(&bench.image(), &dir, "ro");
    assert_eq!(names, listed());
    drop(kernels);
    assert!((20..200).contains(&names.len()), "{} names", names.len());
}

/// A sector does not match its guard tag. The program that reads this sector gets only an errno. The mount prints the sector and the fault.
#[test]
fn a_wrong_sector_is_named() {
    require_mounts!("a_wrong_sector_is_named");
    let bench = Bench::empty();
    fs::write(bench.path("content"), pattern(50_000, 3)).unwrap();
    succeed(tool("mke2fs").args(["-qF", "-t", "ext4", "-b", "4096"]).arg(bench.image()).arg("64M"));
    bench.debugfs(&format!("write {} file", bench.path("content").display()));
    File::create(bench.path("tags")).unwrap().set_len(4 << 20).unwrap();
    bench.succeed(["integrity", "format", "image,tags"]);
    let map = bench.json(&["map", "--json", "image:/file"]);
    let sector = map["extents"][0]["physical"].as_u64().unwrap() / 4096 + 2;
    let image = File::options().write(true).open(bench.image()).unwrap();
    image.write_all_at(b"something else", sector * 4096).unwrap();
    drop(image);
    let dir = bench.path("mounted");
    fs::create_dir(&dir).unwrap();
    let mut mount = bench.command();
    mount.args(["mount", "-f", "integrity:image,tags"]).arg(&dir);
    let mut mount = mount.stderr(File::create(bench.path("said")).unwrap()).spawn().unwrap();
    while !dir.join("file").exists() {
        assert!(mount.try_wait().unwrap().is_none(), "it is not mounted");
    }
    let read = fs::read(dir.join("file"));
    assert!(unmount(&dir) && mount.wait().unwrap().success());
    assert_eq!(read.unwrap_err().raw_os_error(), Some(EILSEQ));
    let said = fs::read_to_string(bench.path("said")).unwrap();
    assert!(said.contains(&format!("sector {sector}: guard: expected 0x")), "{said}");
    check(&bench.image());
}

/// Like the kernel, `-o ro,noload` serves a volume with a damaged journal. A mount for writing is refused.
#[test]
fn a_volume_is_served_without_its_journal() {
    require_mounts!("a_volume_is_served_without_its_journal");
    let bench = volume(&["write /dev/null a"]);
    bench.debugfs("feature needs_recovery");
    let block: u64 = bench.ask("bmap <8> 0").trim().parse().unwrap();
    let stats = succeed(tool("dumpe2fs").arg("-h").arg(bench.image())).stdout;
    let stats = String::from_utf8(stats).unwrap();
    let size = stats.lines().find_map(|line| line.strip_prefix("Block size:")).unwrap();
    let size: u64 = size.trim().parse().unwrap();
    let image = File::options().write(true).open(bench.image()).unwrap();
    image.write_all_at(&[0; 64], block * size).unwrap();
    let dir = bench.path("mounted");
    let ours = Ours::mount(&bench.image(), &dir, "ro,noload");
    assert!(dir.join("a").exists());
    ours.unmount();
    for options in ["noload", "ro"] {
        let mounted = bench.run(["mount", "-o", options, "image", dir.to_str().unwrap()]);
        assert!(!mounted.status.success(), "{options}");
    }
}
