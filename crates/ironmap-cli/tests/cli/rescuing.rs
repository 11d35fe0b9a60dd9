//! Reads of damaged volumes. The superblock is lost, the volume is truncated, or blocks of directories are damaged. The results are
//! compared with the kernel and debugfs.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

use ironmap::fs::{DirCursor, Follow};

use crate::common::image::Image;
use crate::common::loop_device::LoopDevice;
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, succeed, text, tool};

/// Overwrites the start of an image: superblock and descriptors.
fn wipe(image: &Path, bytes: usize) {
    File::options().write(true).open(image).unwrap().write_all_at(&vec![0; bytes], 0).unwrap();
}

/// Asserts success, with one warning that contains this text.
fn warned(output: &Output, what: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.lines().count() == 1 && said.contains(what), "{said}");
}

fn same_content(one: &Path, other: &Path) {
    succeed(tool("diff").args(["-r", "--no-dereference"]).args([one, other]));
}

/// The superblock and the group descriptors are lost. Files that are copied out still equal the originals. The kernel shows the same files
/// with the mount option `sb=N`.
#[test]
fn a_backup_stands_in_for_superblock_and_descriptors() {
    require!([Need::Root]);
    for (options, block, kernel, wiped, found) in [
        (&["-t", "ext4", "-b", "1024"][..], 24577, 24577, 3072, Some("--superblock 8193")),
        (&["-t", "ext3", "-b", "1024"], 8193, 8193, 3072, Some("--superblock 8193")),
        (&["-t", "ext4", "-b", "4096", "-g", "2048"], 2048, 8192, 8192, None),
        (
            &["-t", "ext4", "-b", "1024", "-O", "bigalloc"],
            131_072,
            131_072,
            3072,
            Some("--superblock 131072"),
        ),
    ] {
        let size = if block > 100_000 { "256M" } else { "64M" };
        let bench = Bench::with(&["-t", "ext4"]);
        let image = Image::populated(size, options, &bench.source());
        wipe(&image.path(), wiped);
        let (volume, block) = (image.path().to_str().unwrap().to_owned(), block.to_string());
        let copy = bench.run(["cp", "-r", "--superblock", &block, &format!("{volume}:/"), "out"]);
        warned(&copy, &format!("the backup of the superblock in block {block} is used"));
        fs::remove_dir(bench.path("out/lost+found")).unwrap();
        same_content(&bench.source(), &bench.path("out"));
        let mount = image.mount(&format!("ro,sb={kernel}"));
        fs::create_dir(bench.path("out/lost+found")).unwrap();
        same_content(mount.dir(), &bench.path("out"));
        drop(mount);
        let listed = bench.run(["ls", &format!("{volume}:/dir")]);
        // If a volume has no superblock, the user may have removed it on purpose. Therefore a backup is used only on request.
        let said = text(&listed.stderr);
        assert_eq!(listed.status.code(), Some(3), "{said}");
        assert_eq!(said.contains("--superblock"), found.is_some(), "{said}");
        assert!(said.contains(found.unwrap_or_default()), "{said}");
    }
}

/// A damaged superblock is ignored for reading. Commands that write or check refuse the volume, and do not change it.
#[test]
fn a_damaged_superblock_is_passed_over_only_for_reading() {
    let bench = Bench::with(&["-t", "ext4", "-b", "1024"]);
    let file = File::options().write(true).open(bench.image()).unwrap();
    file.write_all_at(b"x", 1024 + 0x78).unwrap();
    drop(file);
    let before = fs::read(bench.image()).unwrap();
    let cat = bench.run(["cat", &bench.target("/small")]);
    warned(&cat, "s_checksum");
    assert_eq!(text(&cat.stdout), "small\n");
    for (args, code, what) in [
        (&["touch", "image:/new"][..], 4, "s_checksum"),
        (&["tune", "-L", "x", "image"], 4, "s_checksum"),
        (&["touch", "--superblock", "8193", "image:/new"], 3, "but not written"),
        (&["touch", "--truncated", "image:/new"], 3, "but not written"),
        (&["ls", "--superblock", "77", "image:/"], 3, "block 77 contains no superblock"),
        (&["check", "image"], 4, "e2fsck"),
    ] {
        let output = bench.run(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(what), "{args:?}: {said}");
    }
    assert!(before == fs::read(bench.image()).unwrap());
}

/// A superblock with zeros after the magic number looks like revision 0. The backup shows another revision, so the superblock counts as
/// damaged. A volume that really has revision 0 can be used.
#[test]
fn a_superblock_without_its_revision_is_damaged() {
    for options in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext3", "-b", "1024"]] {
        let bench = Bench::with(options);
        let file = File::options().write(true).open(bench.image()).unwrap();
        file.write_all_at(&[0; 300], 1024 + 76).unwrap();
        drop(file);
        let before = fs::read(bench.image()).unwrap();
        let cat = bench.run(["cat", &bench.target("/small")]);
        warned(&cat, "s_rev_level: the revision is 0, but the backup in block 8193 has revision 1");
        assert_eq!(text(&cat.stdout), "small\n");
        for args in [&["touch", "image:/new"][..], &["tune", "-L", "x", "image"]] {
            let output = bench.run(args);
            assert_eq!(output.status.code(), Some(4), "{args:?}: {}", text(&output.stderr));
        }
        assert!(before == fs::read(bench.image()).unwrap());
    }
    let bench = Bench::with(&["-t", "ext2", "-b", "1024", "-r", "0"]);
    assert_eq!(text(&bench.succeed(["cat", &bench.target("/small")])), "small\n");
}

/// `--journal` names the device of an external journal. The option is only for reading. If udev has made a link for the journal, the option
/// is not needed.
#[test]
fn a_journal_on_another_device_is_named_or_found() {
    require!([Need::Root]);
    let bench = Bench::empty();
    let uuid = "0b8f2d3c-6a1e-4f5d-9b7a-52c1e0d4a963";
    let journal = Image::mke2fs("8M", &["-O", "journal_dev", "-b", "4096", "-U", uuid]);
    let device = LoopDevice::new(journal.path());
    let on = format!("device={}", device.node());
    let image = Image::mke2fs("64M", &["-t", "ext4", "-b", "4096", "-J", &on]);
    let mount = image.mount(&format!("journal_path={}", device.node()));
    fs::write(mount.dir().join("file"), "content").unwrap();
    rustix::fs::syncfs(File::open(mount.dir()).unwrap()).unwrap();
    let (dirty, log) = (image.copy(), journal.copy());
    drop((mount, device));
    let (volume, log) = (dirty.path().display().to_string(), log.path().display().to_string());
    let target = format!("{volume}:/file");
    assert_eq!(text(&bench.succeed(["cat", "--journal", &log, &target])), "content");
    let info = bench.json(&["info", "--json", "--journal", &log, &volume]);
    assert_eq!(info["journal"]["state"], "recovered", "{info}");
    bench.succeed(["check", "--journal", &log, &volume]);
    for (args, code, what) in [
        (&["cat", &target][..], 3, uuid),
        (&["cat", "--journal", &volume, &target], 3, "journal device"),
        (&["cat", "--journal", "missing", &target], 3, "missing"),
        (
            &["touch", "--journal", &log, &target],
            3,
            "with a journal device, a volume can be read but not written",
        ),
        (&["tune", "-L", "x", "--journal", &log, &volume], 2, "cannot be changed"),
        (
            &["cat", "--noload", "--journal", &log, &target],
            3,
            "with a journal device, a volume can be read but not written",
        ),
    ] {
        let output = bench.run(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(what), "{args:?}: {said}");
    }
    let _name = Symlink::new(Path::new(&log), &Path::new("/dev/disk/by-uuid").join(uuid));
    assert_eq!(text(&bench.succeed(["cat", &target])), "content");
}

/// A symbolic link below /dev, and the directories that were made for it. Dropping the value removes both.
struct Symlink {
    path: PathBuf,
    made: Vec<PathBuf>,
}

impl Symlink {
    fn new(target: &Path, path: &Path) -> Self {
        let above = path.parent().unwrap();
        let missing = |dir: &&Path| !dir.exists();
        let made = above.ancestors().take_while(missing).map(Path::to_owned).collect();
        fs::create_dir_all(above).unwrap();
        symlink(target, path).unwrap();
        Self { path: path.to_owned(), made }
    }
}

impl Drop for Symlink {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // Another program may use the directories, so the removal may fail.
        self.made.iter().for_each(|dir| drop(fs::remove_dir(dir)));
    }
}

/// The highest block number of a file's content, from the output of debugfs.
fn last_block(bench: &Bench, file: &str) -> u64 {
    let said = bench.ask(&format!("blocks {file}"));
    said.split_whitespace().map(|block| block.parse::<u64>().unwrap()).max().unwrap()
}

/// Files within the truncated image are read as debugfs reads them. Reads past the end of the image are I/O errors.
#[test]
fn a_volume_that_was_cut_short_is_read_as_far_as_it_goes() {
    let bench = Bench::with(&["-t", "ext4", "-b", "1024", "-O", "^has_journal"]);
    let files = ["small", "dir/large", "dir/.hidden", "line\nbreak"];
    let files = files.map(|file| (file, last_block(&bench, &format!("\"{file}\""))));
    let cut = last_block(&bench, "dir/large") - 100;
    let file = File::options().write(true).open(bench.image()).unwrap();
    file.set_len(cut * 1024 + 100).unwrap();
    let refused = bench.run(["ls", "image:/"]);
    assert_eq!(refused.status.code(), Some(4));
    assert!(text(&refused.stderr).contains("--truncated"), "{}", text(&refused.stderr));
    let listed = bench.run(["ls", "--truncated", "image:/dir"]);
    assert_eq!(text(&listed.stdout), "again\nempty\nlarge\nlink\n", "{}", text(&listed.stderr));
    let (mut whole, mut broken) = (0, 0);
    for (file, last) in files {
        let output = bench.run(["cat", "--truncated", &format!("image:/{file}")]);
        let content = fs::read(bench.source().join(file)).unwrap();
        if last < cut {
            whole += 1;
            assert!(output.status.success() && output.stdout == content, "{file:?}");
        } else {
            broken += 1;
            assert_eq!(output.status.code(), Some(1), "{file:?}");
            assert!(text(&output.stderr).contains("EIO"), "{}", text(&output.stderr));
            assert!(content.starts_with(&output.stdout), "{file:?}");
        }
    }
    assert!(whole > 0 && broken > 0, "{whole} whole, {broken} broken");
}

/// If a block of a directory is damaged, only the names in this block are lost. Names in other blocks are listed and found. The kernel does
/// the same.
#[test]
fn a_damaged_block_of_a_directory_loses_its_own_names() {
    require!([Need::Root]);
    for features in ["metadata_csum", "^metadata_csum"] {
        let tree = Bench::empty();
        let dir = tree.path("tree");
        fs::create_dir_all(dir.join("many")).unwrap();
        for number in 0..200 {
            fs::write(dir.join(format!("many/{number:040}")), number.to_string()).unwrap();
        }
        let image = Image::populated("16M", &["-t", "ext4", "-b", "1024", "-O", features], &dir);
        let said = succeed(tool("debugfs").args(["-R", "blocks many"]).arg(image.path()));
        let blocks: Vec<u64> =
            text(&said.stdout).split_whitespace().map(|block| block.parse().unwrap()).collect();
        assert!(blocks.len() > 8);
        let file = File::options().write(true).open(image.path()).unwrap();
        for block in [blocks[2], blocks[5], blocks[6]] {
            // The position 480 is a multiple of 48, the length of each directory entry in bytes. So the damage begins with an entry, in the
            // middle of the block.
            file.write_all_at(&[0xFF; 64], block * 1024 + 480).unwrap();
        }
        let mount = image.mount("ro");
        let names = fs::read_dir(mount.dir().join("many")).unwrap();
        let theirs: BTreeSet<_> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        drop(mount);
        let target = format!("{}:/many", image.path().display());
        let listed = tree.run(["ls", &target]);
        let said = text(&listed.stderr);
        assert_eq!((listed.status.code(), said.lines().count()), (Some(4), 3), "{said}");
        let ours: BTreeSet<_> = text(&listed.stdout).lines().map(str::to_owned).collect();
        assert_eq!(ours, theirs, "{features}");
        assert!(ours.len() > 100 && ours.len() < 200);
        for name in &ours {
            let content = tree.succeed(["cat", &format!("{target}/{name}")]);
            assert_eq!(text(&content).parse::<u64>().ok(), name.parse().ok());
        }
        assert_eq!(listed_for_mounts(&image), ours, "{features}");
        let copied = tree.run(["cp", "-r", &target, "out"]);
        assert_eq!(copied.status.code(), Some(4), "{}", text(&copied.stderr));
        assert_eq!(fs::read_dir(tree.path("out")).unwrap().count(), ours.len());
    }
}

/// The names in the listing that a mount uses. A mount lists a linear directory block by block, and a directory with a hash tree in the
/// order of the hashes.
fn listed_for_mounts(image: &Image) -> BTreeSet<String> {
    let volume = image.open().unwrap();
    let _ = volume.fs().take_notices();
    let dir = volume.fs().resolve(b"/many", Follow::All).unwrap();
    let names = dir.list(DirCursor::START).unwrap();
    let names = names.map(|entry| String::from_utf8(entry.unwrap().name).unwrap());
    let names = names.filter(|name| name != "." && name != "..").collect();
    assert_eq!(volume.fs().take_notices().len(), 3);
    names
}

/// Damaged leaves of a hash tree are skipped like blocks of a linear directory.
#[test]
fn a_damaged_leaf_of_a_hash_tree_loses_its_own_names() {
    let tree = Bench::empty();
    let dir = tree.path("tree");
    fs::create_dir_all(dir.join("many")).unwrap();
    for number in 0..200 {
        fs::write(dir.join(format!("many/{number:040}")), "").unwrap();
    }
    let image = Image::populated("16M", &["-t", "ext4", "-b", "1024"], &dir);
    let _ = tool("e2fsck").arg("-fyD").arg(image.path()).output().unwrap();
    let said = succeed(tool("debugfs").args(["-R", "htree_dump many"]).arg(image.path()));
    assert!(text(&said.stdout).contains("Root node dump"), "{}", text(&said.stdout));
    let said = succeed(tool("debugfs").args(["-R", "blocks many"]).arg(image.path()));
    let blocks: Vec<u64> =
        text(&said.stdout).split_whitespace().map(|block| block.parse().unwrap()).collect();
    let file = File::options().write(true).open(image.path()).unwrap();
    for block in &blocks[2..5] {
        file.write_all_at(&[0xFF; 8], block * 1024).unwrap();
    }
    drop(file);
    let listed = tree.run(["ls", &format!("{}:/many", image.path().display())]);
    assert_eq!(listed.status.code(), Some(4));
    let ours: BTreeSet<_> = text(&listed.stdout).lines().map(str::to_owned).collect();
    assert!(ours.len() > 100 && ours.len() < 190, "{}", ours.len());
    assert_eq!(listed_for_mounts(&image), ours);
}
