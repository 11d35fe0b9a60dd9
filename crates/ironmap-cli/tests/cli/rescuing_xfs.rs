//! Reads of damaged XFS volumes, and deleted files of XFS. The kernel fills the volumes and deletes the files; the results are compared
//! with the content of the original files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::common::image::{Image, words};
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, succeed, text, tool};

/// Writes bytes into an image.
fn poke(image: &Path, at: u64, bytes: &[u8]) {
    File::options().write(true).open(image).unwrap().write_all_at(bytes, at).unwrap();
}

/// Makes a volume with a few files. Returns the image and a copy of its tree.
fn filled(bench: &Bench, options: &str) -> (Image, PathBuf) {
    let image = Image::mkfs_xfs("480M", &words(options)).unwrap();
    let mount = image.mount("noatime");
    fs::create_dir_all(mount.dir().join("dir/below")).unwrap();
    fs::write(mount.dir().join("file"), pattern(300_000, 3)).unwrap();
    for number in 0..200 {
        fs::write(mount.dir().join(format!("dir/below/name-{number}")), number.to_string())
            .unwrap();
    }
    let copy = bench.path("expected");
    succeed(tool("cp").arg("-a").arg(mount.dir()).arg(&copy));
    drop(mount);
    (image, copy)
}

/// Asserts that a command succeeds with one warning, which contains this text.
fn warned(output: &Output, what: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.lines().count() == 1 && said.contains(what), "{said}");
}

/// The length of an allocation group in bytes.
fn group_len(image: &Path) -> u64 {
    let said = succeed(tool("xfs_db").args(["-r", "-c", "sb 0", "-c", "p agblocks"]).arg(image));
    4096 * text(&said.stdout).trim().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
}

/// If the first superblock is damaged or lost, a read uses the copy of the superblock in another allocation group, and each command prints
/// one warning about this. `info` shows the same counts as before the damage. Commands that write refuse the volume. `check` reports the
/// fault.
#[test]
fn a_copy_stands_in_for_the_first_superblock() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_db")]);
    for options in ["", "-d agcount=2", "-b size=1024 -d agcount=3", "-d su=64k,sw=5,agcount=4"] {
        let bench = Bench::empty();
        let (image, expected) = filled(&bench, options);
        let path = image.path();
        let volume = path.to_str().unwrap();
        let info = bench.json(&["info", "--json", volume]);
        for (at, bytes, what) in [
            (60, &[7; 4][..], "the first superblock is damaged (superblock, sb_crc: "),
            (100, &[0xFF; 2], "the first superblock is damaged (superblock, sb_crc: "),
            (0, &[0; 512], "the first superblock is lost: the copy in group 1 is used"),
        ] {
            poke(&path, at, bytes);
            let before = fs::read(&path).unwrap();
            let out = bench.path("out");
            let copied = bench.run(["cp", "-r", &format!("{volume}:/"), out.to_str().unwrap()]);
            warned(&copied, what);
            succeed(tool("diff").arg("-r").args([&expected, &out]));
            fs::remove_dir_all(out).unwrap();
            let listed = bench.run(["info", "--json", volume]);
            warned(&listed, what);
            let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
            for field in ["blocks", "free_blocks", "inodes", "free_inodes", "uuid", "clean"] {
                assert_eq!(listed[field], info[field], "{options}: {field}");
            }
            let checked = bench.run(["check", volume]);
            assert_eq!(checked.status.code(), Some(4));
            let said = text(&checked.stdout);
            assert!(said.contains(what) && said.lines().count() == 2, "{said}");
            for args in [["touch", &format!("{volume}:/new")], ["rm", &format!("{volume}:/file")]] {
                assert!(!bench.run(args).status.success(), "{args:?}");
            }
            assert!(before == fs::read(&path).unwrap(), "the volume was changed");
        }
    }
}

/// `--superblock` gives the number of the allocation group whose copy of the superblock is used. A group without an undamaged copy is
/// refused. A copy that no other copy confirms is not used.
#[test]
fn the_copy_of_a_group_is_named() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_db")]);
    let bench = Bench::empty();
    let (image, _) = filled(&bench, "-d agcount=4");
    let path = image.path();
    let (volume, len) = (path.to_str().unwrap(), group_len(&path));
    let list = |group: &str| bench.run(["ls", "--superblock", group, volume]);
    for group in ["1", "2", "3"] {
        let said = list(group);
        warned(&said, &format!("the copy of the superblock in group {group} is used"));
        assert_eq!(text(&said.stdout), "dir\nfile\n");
    }
    for group in ["0", "4", "20480"] {
        let refused = list(group);
        assert_eq!(refused.status.code(), Some(3));
        let what = format!("allocation group {group} contains no copy of an XFS superblock");
        assert!(text(&refused.stderr).contains(&what), "{}", text(&refused.stderr));
    }
    poke(&path, 0, &[0; 512]);
    poke(&path, len + 40, b"damage");
    assert!(!list("1").status.success());
    warned(&list("3"), "group 3");
    warned(&bench.run(["ls", volume]), "the copy in group 2 is used");
    poke(&path, 2 * len, &[0; 512]);
    let alone = bench.run(["ls", volume]);
    assert_eq!(alone.status.code(), Some(3), "{}", text(&alone.stderr));
}

/// A file of the volume contains the image of another volume, which has superblocks of its own. These superblocks are not used for the
/// outer volume.
#[test]
fn the_superblocks_of_an_image_in_a_file_are_not_used() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_db")]);
    let bench = Bench::empty();
    let inner = Image::mkfs_xfs("300M", &["-b", "size=1024"]).unwrap();
    let image = Image::mkfs_xfs("800M", &["-d", "agcount=3"]).unwrap();
    let mount = image.mount("noatime");
    succeed(tool("cp").arg("--sparse=never").arg(inner.path()).arg(mount.dir().join("inner")));
    drop(mount);
    poke(&image.path(), 0, b"damaged");
    let listed = bench.run(["ls", image.path().to_str().unwrap()]);
    warned(&listed, "the copy in group 1 is used");
    assert_eq!(text(&listed.stdout), "inner\n");
}

/// The errors name the options that help: `--truncated` for a truncated image, `--noload` for a damaged log.
#[test]
fn errors_name_the_option_that_helps() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io"), Need::Tool("xfs_db")]);
    let bench = Bench::empty();
    let (image, expected) = filled(&bench, "");
    let (path, cut) = (image.path(), bench.path("cut"));
    let volume = path.to_str().unwrap();
    succeed(tool("cp").arg("--sparse=always").args([&path, &cut]));
    File::options().write(true).open(&cut).unwrap().set_len(400 << 20).unwrap();
    let refused = bench.run(["ls", "cut"]);
    assert_eq!(refused.status.code(), Some(4));
    assert!(text(&refused.stderr).contains("--truncated"), "{}", text(&refused.stderr));
    let read = bench.succeed(["cat", "--truncated", "cut:/file"]);
    assert!(read == pattern(300_000, 3));
    // The log needs recovery, and its last record is damaged in the middle.
    let mount = image.mount("noatime");
    for number in 0..2000 {
        fs::write(mount.dir().join(format!("new-{number}")), "new").unwrap();
    }
    rustix::fs::syncfs(File::open(mount.dir()).unwrap()).unwrap();
    succeed(tool("xfs_io").args(["-x", "-c", "shutdown -f"]).arg(mount.dir()));
    drop(mount);
    let said = succeed(tool("xfs_db").args(["-r", "-c", "sb 0", "-c", "p logstart"]).arg(&path));
    let start: u64 = text(&said.stdout).trim().rsplit(' ').next().unwrap().parse().unwrap();
    let said =
        succeed(tool("xfs_db").args(["-r", "-c", &format!("convert fsb {start} byte")]).arg(&path));
    let said = text(&said.stdout);
    let hex = said.split_once("(").map_or(&*said, |(_, rest)| rest.split(')').next().unwrap());
    let at: u64 = hex.trim().parse().unwrap_or_else(|_| panic!("{said}"));
    for record in 0..40 {
        poke(&path, at + record * 4096 + 2048, &[0x5A; 16]);
    }
    let refused = bench.run(["ls", volume]);
    assert_eq!(refused.status.code(), Some(4), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("--noload"), "{}", text(&refused.stderr));
    let read = bench.run(["cat", "--noload", &format!("{volume}:/file")]);
    warned(&read, "the log is not read");
    assert!(read.stdout == fs::read(expected.join("file")).unwrap());
}

/// Returns the deleted files of an image by path. Asserts that the command does not change the image.
fn deleted(bench: &Bench, image: &Path) -> BTreeMap<String, Value> {
    let before = fs::read(image).unwrap();
    let found = bench.json(&["undelete", "--json", image.to_str().unwrap()]);
    assert!(before == fs::read(image).unwrap(), "the volume was changed");
    let path = |file: &Value| match file["path"].as_str() {
        Some(path) => path.to_owned(),
        None => format!("<{}>", file["inode"]),
    };
    found.as_array().unwrap().iter().map(|file| (path(file), file.clone())).collect()
}

/// Makes and deletes files of all forms. Returns the content of each deleted file.
fn delete(image: &Image) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mount = image.mount("noatime");
    let mut add = |name: String, content: Vec<u8>| {
        let path = mount.dir().join(&name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &content).unwrap();
        files.insert(name, content);
    };
    add("small".to_owned(), b"hello\n".to_vec());
    add("large".to_owned(), pattern(5_000_001, 5));
    add("tree/a/b/deep".to_owned(), pattern(70_000, 6));
    add("tree/a/middle".to_owned(), pattern(1, 7));
    for number in (0..300).step_by(7) {
        add(format!("many/a-long-name-{number}"), number.to_string().into_bytes());
    }
    for number in (0..300).filter(|number| number % 7 != 0) {
        fs::write(mount.dir().join(format!("many/a-long-name-{number}")), "stays").unwrap();
    }
    let scattered = File::create(mount.dir().join("scattered")).unwrap();
    for at in 0..800 {
        scattered.write_all_at(&pattern(4096, at), at * 8192).unwrap();
    }
    files.insert("scattered".to_owned(), fs::read(mount.dir().join("scattered")).unwrap());
    drop(scattered);
    drop(mount);
    let mount = image.mount("noatime");
    fs::remove_dir_all(mount.dir().join("tree")).unwrap();
    for name in files.keys().filter(|name| !name.starts_with("tree")) {
        fs::remove_file(mount.dir().join(name)).unwrap();
    }
    drop(mount);
    files
}

/// The log contains the last state of deleted inodes and of directories, so files are found with their size and path.
#[test]
fn files_that_the_kernel_deleted_are_found_in_the_log() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_repair")]);
    for options in ["", "-b size=1024 -m reflink=0", "-i size=1024 -m rmapbt=1 -n size=16384"] {
        let bench = Bench::empty();
        let image = Image::mkfs_xfs("320M", &words(options)).unwrap();
        let files = delete(&image);
        let found = deleted(&bench, &image.path());
        let expected: Vec<_> = files.keys().map(|name| format!("/{name}")).collect();
        assert_eq!(found.keys().cloned().collect::<Vec<_>>(), expected, "{options}");
        assert!(found.values().all(|file| file["whole"] == true), "{options}: {found:?}");
        bench.succeed(["undelete", image.path().to_str().unwrap(), "-o", "out"]);
        for (name, content) in &files {
            let copied = fs::read(bench.path("out").join(name)).unwrap();
            assert!(copied == *content, "{options}: {name}");
        }
        image.check();
        // A file that uses all free blocks overwrites the deleted files.
        let mount = image.mount("noatime");
        mount.fill("full");
        drop(mount);
        // Linux keeps some blocks of each group free, so small deleted files can still have all of their blocks.
        let found = deleted(&bench, &image.path());
        let reused = |file: &&Value| file["free_blocks"].as_u64() < file["blocks"].as_u64();
        assert!(reused(&&found["/large"]), "{options}: {}", found["/large"]);
        assert!(found.values().filter(reused).all(|file| file["whole"] == false), "{found:?}");
        bench.run(["undelete", image.path().to_str().unwrap(), "-o", "again"]);
        for (name, content) in &files {
            let copied = fs::read(bench.path("again").join(name));
            assert!(copied.is_err() || copied.unwrap() == *content, "{options}: {name}");
        }
    }
}

/// If the log no longer contains the deletion of a file, the file is recovered from its freed inode, which still contains the extents. Most
/// names are found in the unused space of the directory. The size of the file is lost, so the copy contains the content, and zeros up to
/// the end of the last block. The file is copied only with `--partial`.
#[test]
fn files_that_the_log_does_not_contain_are_found_in_free_inodes() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_db")]);
    let bench = Bench::empty();
    let image = Image::mkfs_xfs("320M", &[]).unwrap();
    let files = delete(&image);
    let path = image.path();
    // The new log has a higher cycle than all metadata, so it counts as newer than the metadata.
    succeed(tool("xfs_db").args(["-x", "-c", "logformat -c 9"]).arg(&path));
    let found = deleted(&bench, &path);
    assert!(found.values().all(|file| file["whole"] == false), "{found:?}");
    let refused = bench.run(["undelete", path.to_str().unwrap(), "-o", "out"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).lines().all(|line| line.contains("--partial")));
    bench.run(["undelete", path.to_str().unwrap(), "-o", "out", "--partial"]);
    let mut same = 0;
    for (name, content) in files.iter().filter(|(name, _)| *name != "scattered") {
        let Ok(copied) = fs::read(bench.path("out").join(name)) else { continue };
        let (start, rest) = copied.split_at(content.len());
        assert!(
            start == content && rest.len() < 4096 && rest.iter().all(|byte| *byte == 0),
            "{name}"
        );
        same += 1;
    }
    // The chunk of inodes of a removed tree can be freed, and names can be overwritten.
    assert!(same > files.len() / 2, "{same} of {}: {:?}", files.len(), found.keys());
}
