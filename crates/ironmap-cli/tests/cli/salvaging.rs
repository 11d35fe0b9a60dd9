//! Tests `ironmap salvage` on volumes that the kernel has filled, with damage of all kinds. The copies are compared with the content before
//! the damage (`Truth`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::image::{Image, LoopMount, words};
use crate::common::kernel;
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, succeed, text, tool};

/// The content of each regular file, by inode number.
type Truth = BTreeMap<u64, Vec<u8>>;

/// A tree with directories in several levels. The content of each file is unique.
fn fill(dir: &Path) {
    let mut seed = 0;
    for name in ["", "a", "a/b", "a/b/c", "d", "d/e"] {
        fs::create_dir_all(dir.join(name)).unwrap();
        for len in [1, 5_000, 70_000, 1_500_000] {
            seed += 1;
            fs::write(dir.join(name).join(format!("file-{len}")), pattern(len, seed)).unwrap();
        }
    }
    fs::create_dir(dir.join("many")).unwrap();
    for number in 0..300 {
        fs::write(dir.join(format!("many/name-{number}")), number.to_string()).unwrap();
    }
}

/// The regular files below a directory.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let below = |entry: fs::DirEntry| match entry.file_type().unwrap() {
        kind if kind.is_dir() => files_below(&entry.path()),
        kind if kind.is_file() => vec![entry.path()],
        _ => Vec::new(),
    };
    entries.flat_map(below).collect()
}

fn truth_of(dir: &Path) -> Truth {
    let known = |path: PathBuf| (path.metadata().unwrap().ino(), fs::read(path).unwrap());
    files_below(dir).into_iter().map(known).collect()
}

/// The times of the last write to a file.
fn modified(path: &Path) -> [(i64, i64); 2] {
    let stat = path.metadata().unwrap();
    [(stat.mtime(), stat.mtime_nsec()), (stat.ctime(), stat.ctime_nsec())]
}

/// The results of a salvage.
struct Salvaged {
    lines: Vec<Value>,
    code: i32,
    stderr: String,
}

impl Salvaged {
    /// Salvages a volume, and asserts that the volume is not changed. Each copy has the original content, except in its missing ranges.
    fn new(bench: &Bench, image: &Path, truth: &Truth, what: &str) -> Self {
        let (before, out) = (modified(image), bench.path("out"));
        let ended = bench.run(["salvage", image.to_str().unwrap(), out.to_str().unwrap()]);
        let stderr = text(&ended.stderr);
        assert_eq!(before, modified(image), "{what}: the volume was changed");
        let report = fs::read_to_string(out.join("report.jsonl")).unwrap();
        let lines: Vec<Value> =
            report.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let mut copied = 1;
        for line in &lines {
            let copy = line["copy"].as_str().map(|copy| out.join(path_of(line, copy)));
            let Some(copy) = copy.filter(|copy| copy.is_file()) else { continue };
            copied += 1;
            if let Some(content) = truth.get(&line["inode"].as_u64().unwrap()) {
                compare(&copy, content, line);
            }
        }
        assert_eq!(files_below(&out).len(), copied, "{what}: each copy is in the report");
        fs::remove_dir_all(&out).unwrap();
        let this = Self { lines, code: ended.status.code().unwrap(), stderr };
        assert_eq!(this.code == 0, this.lines.iter().all(is_whole), "{what}: {}", this.stderr);
        this
    }

    fn count(&self, key: &str, value: &str) -> usize {
        self.lines.iter().filter(|line| line[key] == value).count()
    }

    /// Asserts that the report contains each file.
    fn check_complete(&self, truth: &Truth, what: &str) {
        for inode in truth.keys() {
            let line = self.lines.iter().find(|line| line["inode"] == *inode);
            assert!(line.is_some(), "{what}: inode {inode} is missing\n{}", self.stderr);
        }
    }
}

/// A path of the report, in which bytes that are not UTF-8 are written as `%XX`.
fn path_of(line: &Value, text: &str) -> PathBuf {
    if line["encoding"].is_null() {
        return text.into();
    }
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    OsString::from_vec(bytes).into()
}

fn is_whole(line: &Value) -> bool {
    line["state"] == "whole"
}

/// A whole copy has the original content. A copy in part has the original content outside of the missing ranges, and zeros in these ranges.
fn compare(copy: &Path, content: &[u8], line: &Value) {
    let mut expected = content.to_vec();
    let ranges = line["missing"].as_array().cloned().unwrap_or_default();
    assert_eq!(ranges.is_empty(), is_whole(line), "{line}");
    for range in ranges {
        let [start, end] = [0, 1].map(|index| range[index].as_u64().unwrap() as usize);
        expected[start..end].fill(0);
    }
    assert!(fs::read(copy).unwrap() == expected, "{line}");
}

/// Makes a volume, which the kernel fills and unmounts. Returns the image and the content of its files.
fn filled(format: &str, options: &str) -> (Image, Truth) {
    let image = empty(format, options);
    let mount = image.mount("noatime");
    fill(mount.dir());
    let truth = truth_of(mount.dir());
    drop(mount);
    (image, truth)
}

fn empty(format: &str, options: &str) -> Image {
    match format {
        "xfs" => Image::mkfs_xfs("480M", &words(options)).unwrap(),
        _ => Image::mke2fs("64M", &words(&format!("-t {format} {options}"))),
    }
}

struct Damage {
    what: &'static str,
    damage: fn(&Image),
    /// The number of files that are found without a name, and of names whose files are lost. `None` if the number depends on the format.
    unreachable: Option<usize>,
    lost: Option<usize>,
}

fn debugfs(image: &Image, commands: &str) {
    image.debugfs(commands);
}

/// Gives a file or directory the name of another file of /a, so that /a has two entries with this name.
fn name_again(image: &Image, path: &str) {
    debugfs(image, &format!("ln {path} /a/file-70001\nunlink {path}\n"));
    let block = image.bmap("/a", std::iter::once(0))[0];
    let content = image.block(block);
    let at = content.windows(10).position(|bytes| bytes == b"file-70001").expect("the name");
    image.poke_block(block, at as u64, b"file-70000");
}

const EXT4: &[Damage] = &[
    Damage { what: "none", damage: |_| {}, unreachable: Some(0), lost: Some(0) },
    Damage {
        what: "a directory without a name",
        damage: |image| debugfs(image, "unlink /a/b\n"),
        unreachable: Some(8),
        lost: Some(0),
    },
    Damage {
        what: "a file without a name",
        damage: |image| debugfs(image, "unlink /a/file-70000\n"),
        unreachable: Some(1),
        lost: Some(0),
    },
    Damage {
        what: "a cleared directory",
        damage: |image| debugfs(image, "clri /a\n"),
        unreachable: Some(12),
        lost: Some(1),
    },
    Damage {
        what: "a cycle of directories",
        damage: |image| debugfs(image, "ln /a /a/b/again\nunlink /a\n"),
        unreachable: Some(13),
        lost: Some(1),
    },
    Damage {
        what: "the root directory",
        damage: |image| debugfs(image, "clri <2>\n"),
        unreachable: None,
        lost: None,
    },
    Damage {
        what: "a block of a directory",
        damage: |image| image.poke("/a/b", 0, 200, &[0xA5; 64]),
        unreachable: None,
        lost: None,
    },
    Damage {
        what: "the last block of a directory",
        damage: |image| image.poke("/many", 1, 200, &[0xA5; 64]),
        unreachable: None,
        lost: None,
    },
    Damage {
        what: "a name twice",
        damage: |image| name_again(image, "/d/file-5000"),
        unreachable: None,
        lost: None,
    },
    Damage {
        what: "a directory with the name of a file",
        damage: |image| name_again(image, "/d/e"),
        unreachable: None,
        lost: None,
    },
    Damage {
        what: "the inode of the journal",
        damage: |image| debugfs(image, "clri <8>\nfeature needs_recovery\n"),
        unreachable: Some(0),
        lost: Some(0),
    },
    Damage {
        what: "the bitmaps",
        damage: |image| {
            debugfs(image, "freei <12> 100\nset_bg 0 checksum 7\n");
        },
        unreachable: Some(0),
        lost: Some(0),
    },
    Damage {
        what: "the superblock of the journal",
        damage: |image| {
            image.poke("<8>", 0, 0, &[0xA5; 64]);
            debugfs(image, "feature needs_recovery\n");
        },
        unreachable: Some(0),
        lost: Some(0),
    },
];

/// The report contains every file of an ext4 volume. Damage of directories does not lose the files below them.
#[test]
fn every_file_of_ext4_is_in_the_report() {
    require!([Need::Root]);
    for options in ["-b 1024", "-b 4096", "-b 4096 -O ^metadata_csum"] {
        let (sound, truth) = filled("ext4", options);
        for damage in EXT4 {
            let (bench, image) = (Bench::empty(), sound.copy());
            let what = format!("{options}, {}", damage.what);
            (damage.damage)(&image);
            let found = Salvaged::new(&bench, &image.path(), &truth, &what);
            found.check_complete(&truth, &what);
            let unreachable = found.count("found", "unreachable");
            assert_eq!(damage.unreachable.unwrap_or(unreachable), unreachable, "{what}");
            let lost = found.count("state", "lost");
            assert_eq!(damage.lost.unwrap_or(lost), lost, "{what}: {}", found.stderr);
            let whole = found.lines.iter().filter(|line| is_whole(line));
            let inodes = whole.filter_map(|line| line["inode"].as_u64());
            let whole = inodes.filter(|inode| truth.contains_key(inode)).count();
            assert_eq!(whole, truth.len(), "{what}: {}", found.stderr);
        }
    }
}

/// Writes bytes at a position of an image.
fn poke(image: &Image, at: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(image.path()).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// The position of an inode of XFS in bytes.
fn inode_of(image: &Image, number: u64) -> u64 {
    let inode = format!("inode {number}");
    let said = succeed(tool("xfs_db").args(["-r", "-c", &inode, "-c", "stack"]).arg(image.path()));
    let said = text(&said.stdout);
    let offset = said.split("byte offset ").nth(1).expect(&said);
    offset.split(',').next().and_then(|offset| offset.parse().ok()).expect(&said)
}

/// The report contains every file of an XFS volume, even if the inode header of a group or the inode of a directory is damaged.
#[test]
fn every_file_of_xfs_is_in_the_report() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_db")]);
    for options in ["-d agcount=2"] {
        let (sound, truth) = filled("xfs", options);
        let dir = |name: &str| {
            let mount = sound.mount("ro,norecovery");
            mount.dir().join(name).metadata().unwrap().ino()
        };
        let (a, many) = (dir("a"), dir("many"));
        for (what, at, bytes, unreachable, lost) in [
            ("none", 0, &[][..], 0, 0),
            ("the header of inodes", 1024, &[0xA5; 512], 0, 0),
            ("the first superblock", 0, &[0; 512], 0, 0),
            ("a directory", inode_of(&sound, a), &[0; 8], 12, 1),
            ("a directory with blocks", inode_of(&sound, many), &[0; 8], 300, 1),
        ] {
            let (bench, image) = (Bench::empty(), sound.copy());
            let what = format!("{options}, {what}");
            poke(&image, at, bytes);
            let found = Salvaged::new(&bench, &image.path(), &truth, &what);
            found.check_complete(&truth, &what);
            assert_eq!(found.count("found", "unreachable"), unreachable, "{what}");
            assert_eq!(found.count("state", "lost"), lost, "{what}: {}", found.stderr);
            let whole = found.count("state", "whole");
            assert_eq!(whole, truth.len(), "{what}: {}", found.stderr);
        }
    }
}

/// If a volume ends in the middle of a file, salvage copies this file in part under each of its names, with zeros in the missing range.
#[test]
fn a_truncated_volume_comes_back_in_part() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("filefrag")]);
    for format in ["ext4", "xfs"] {
        let image = empty(format, "");
        let mount = image.mount("noatime");
        let names = (0..20).map(|number| mount.dir().join(format!("file-{number}")));
        let files: Vec<_> = names.collect();
        for (seed, file) in (0..).zip(&files) {
            fs::write(file, pattern(1_500_000, seed)).unwrap();
            fs::hard_link(file, file.with_extension("link")).unwrap();
        }
        rustix::fs::syncfs(File::open(mount.dir()).unwrap()).unwrap();
        let (truth, maps) = (truth_of(mount.dir()), kernel::maps(&files));
        drop(mount);
        for map in maps.iter().step_by(7) {
            let (bench, image) = (Bench::empty(), image.copy());
            let cut = map[0].addr + map[0].len / 2;
            File::options().write(true).open(image.path()).unwrap().set_len(cut).unwrap();
            let what = format!("{format} with {cut} bytes");
            let found = Salvaged::new(&bench, &image.path(), &truth, &what);
            let warning = "opened as a truncated volume";
            assert!(found.stderr.contains(warning), "{what}: {}", found.stderr);
            assert_eq!(found.count("state", "part"), 2, "{what}: {}", found.stderr);
            found.check_complete(&truth, &what);
        }
    }
}

/// The image of a mounted volume, after a sync.
fn copy_of_mounted(image: &Image, mount: &LoopMount) -> Image {
    rustix::fs::syncfs(File::open(mount.dir()).unwrap()).unwrap();
    let device = File::open(mount.device()).unwrap();
    rustix::fs::fsync(device).unwrap();
    image.copy()
}

/// A file that was removed while it was open is copied as an orphan. A file whose deletion is in the log is copied as a deleted file.
#[test]
fn orphans_and_deleted_files_come_back() {
    require!([Need::Root, Need::Tool("mkfs.xfs")]);
    for (format, options) in
        [("ext4", ""), ("ext4", "-O orphan_file"), ("ext4", "-O fast_commit"), ("xfs", "")]
    {
        let bench = Bench::empty();
        let image = empty(format, options);
        let mount = image.mount("noatime");
        fill(mount.dir());
        let path = mount.dir().join("d/e/file-70000");
        let held = File::open(&path).unwrap();
        let orphan = held.metadata().unwrap().ino();
        rustix::fs::syncfs(&held).unwrap();
        let mut truth = truth_of(mount.dir());
        let gone = ["a/b/file-5000", "a/file-70000"].map(|name| mount.dir().join(name));
        let deleted = gone.each_ref().map(|path| path.metadata().unwrap().ino());
        gone.iter().chain([&path]).for_each(|path| fs::remove_file(path).unwrap());
        let copy = copy_of_mounted(&image, &mount);
        let what = format!("{format} {options}");
        let found = Salvaged::new(&bench, &copy.path(), &truth, &what);
        let places = |inode| {
            let lines = found.lines.iter().filter(move |line| line["inode"] == inode);
            lines.map(|line| line["found"].as_str().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(places(orphan), ["orphans"], "{what}: {}", found.stderr);
        for inode in deleted {
            // The kernel frees a removed inode of XFS later. Until then the inode is an orphan.
            let places = places(inode);
            let is_orphan = format == "xfs" && places == ["orphans"];
            assert!(is_orphan || places == ["deleted"], "{what}: {places:?} {}", found.stderr);
        }
        assert_eq!(found.count("state", "whole"), truth.len(), "{what}: {}", found.stderr);
        truth.clear();
        drop((held, mount));
    }
}

/// `salvage` refuses a target directory that is not empty, and writes no file into this directory. On a sound volume, `salvage` reports no
/// file as lost.
#[test]
fn a_directory_with_files_is_refused() {
    let bench = Bench::new();
    fs::create_dir(bench.path("full")).unwrap();
    fs::write(bench.path("full/file"), "precious").unwrap();
    let refused = bench.run(["salvage", "image", "full"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("the directory is not empty"));
    assert_eq!(fs::read_dir(bench.path("full")).unwrap().count(), 1);
    let missing = bench.run(["salvage", "missing", "none"]);
    assert_eq!(missing.status.code(), Some(3), "{}", text(&missing.stderr));
    assert!(!bench.path("none").exists());
    let totals = bench.json(&["salvage", "--json", "image", "new"]);
    assert_eq!((&totals["tree"]["lost"], &totals["deleted"]["lost"]), (&0.into(), &0.into()));
}
