//! The undamaged base volumes, made by mke2fs and debugfs. Together they contain every structure of the format.

use std::fmt::Write as _;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

use super::repair::crc;
use super::spots::{self, Raw, SUPERBLOCK, Spot};

/// A volume, and the positions of its structures.
pub(crate) struct Base {
    #[allow(dead_code, reason = "the fuzzer does not say it")]
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
    pub(crate) spots: Vec<Spot>,
}

/// Name, block size, options of mke2fs, size in megabytes, and the debugfs options for the journal.
type Recipe = (&'static str, usize, &'static str, u32, &'static str);

const RECIPES: [Recipe; 3] = [
    (
        "all of ext4",
        1024,
        "-t ext4 -O inline_data,ea_inode,large_dir,orphan_file,fast_commit,project,quota -J size=2",
        6,
        "jo -c -v 3",
    ),
    ("ext3", 1024, "-t ext3 -J size=1", 4, "jo"),
    (
        "meta groups",
        4096,
        "-t ext4 -O meta_bg,^resize_inode,ea_inode,casefold,bigalloc -J size=4",
        16,
        "jo -c -v 2",
    ),
];

impl Base {
    /// Makes all volumes.
    pub(crate) fn all() -> Vec<Self> {
        RECIPES.iter().map(Self::make).collect()
    }

    fn make((name, block, options, megabytes, journal): &Recipe) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
        plant(&tree, *block);
        let size = format!("{megabytes}M");
        let block_size = block.to_string();
        let mut mke2fs = Command::new("mke2fs");
        // The UUID and the hash seed are fixed. So each run makes the same volume, except for the time stamps.
        mke2fs.args(["-q", "-F", "-b", &block_size, "-I", "256", "-N", "320"]);
        mke2fs.args(["-U", SEED, "-E", &format!("hash_seed={SEED}")]).args(options.split(' '));
        run(mke2fs.arg("-d").arg(&tree).arg(&image).arg(&size), &[0]);
        run(Command::new("e2fsck").args(["-fyD"]).arg(&image), &[0, 1]);
        attributes(dir.path(), &image);
        if *journal == "jo -c -v 3" {
            run(Command::new("tune2fs").args(["-O", "mmp"]).arg(&image), &[0]);
        }
        // Mount protection is switched off while debugfs runs. With it, debugfs would wait for ten seconds.
        let protected = hide_mount_protection(&image);
        log(dir.path(), &image, *block, journal);
        let mut bytes = std::fs::read(&image).unwrap();
        bytes[INCOMPAT + 1] |= protected;
        spots::fast_commits(&mut bytes);
        let spots = Spot::all(&bytes);
        Self { name, bytes, spots }
    }

    pub(crate) fn block_size(&self) -> usize {
        Raw(&self.bytes).block_size()
    }
}

/// The position of `s_feature_incompat`. The lowest bit of its second byte is the feature of mount protection.
const INCOMPAT: usize = SUPERBLOCK + 0x60;

fn hide_mount_protection(image: &Path) -> u8 {
    let mut bytes = std::fs::read(image).unwrap();
    let protected = bytes[INCOMPAT + 1] & 1;
    bytes[INCOMPAT + 1] &= !1;
    if protected != 0 {
        let sum = crc(!0, &bytes[SUPERBLOCK..SUPERBLOCK + 0x3FC]);
        bytes[SUPERBLOCK + 0x3FC..][..4].copy_from_slice(&sum.to_le_bytes());
        std::fs::write(image, bytes).unwrap();
    }
    protected
}

const SEED: &str = "01234567-89ab-cdef-0123-456789abcdef";

/// Makes the tree of files for the volumes.
fn plant(tree: &Path, block: usize) {
    for dir in ["linear", "hashed", "a/b/c/d"] {
        std::fs::create_dir_all(tree.join(dir)).unwrap();
    }
    for number in 0..20 {
        std::fs::write(tree.join(format!("linear/file-{number:02}")), "").unwrap();
    }
    for number in 0..10 * block / 64 {
        std::fs::hard_link(
            tree.join("linear/file-00"),
            tree.join(format!("hashed/a-long-name-of-many-{number:030}")),
        )
        .unwrap();
    }
    std::fs::write(tree.join("small"), "x".repeat(40)).unwrap();
    std::fs::write(tree.join("inline"), "y".repeat(100)).unwrap();
    symlink("linear/file-01", tree.join("short")).unwrap();
    symlink(format!("a{}/b", "/b/..".repeat(15)), tree.join("middle")).unwrap();
    symlink(format!("/a{}", "/../a".repeat(60)), tree.join("long")).unwrap();
    // The pieces have holes between them. So the map needs separate blocks, and an indirect map also needs the second level.
    let sparse = std::fs::File::create(tree.join("sparse")).unwrap();
    let piece = vec![0x5A; block.max(4096)];
    for number in (0..24).chain([100, 200]) {
        sparse.write_all_at(&piece, number * 3 * piece.len() as u64).unwrap();
    }
}

fn attributes(dir: &Path, image: &Path) {
    let mut script = "ea_set small user.short abc\n".to_owned();
    for (name, len) in [("block", 300), ("inode", 3000), ("other", 2000)] {
        let value = dir.join(name);
        std::fs::write(&value, "v".repeat(len)).unwrap();
        writeln!(script, "ea_set -f {} small user.{name}", value.display()).unwrap();
    }
    debugfs(dir, image, &script);
}

/// Writes two transactions to the journal. The first contains unchanged blocks of a file and of a directory. The second contains a
/// revocation and one more block.
fn log(dir: &Path, image: &Path, block: usize, open: &str) {
    let asked = "bmap sparse 0\nbmap linear 0\nbmap hashed 1\n";
    let output = debugfs(dir, image, asked);
    let blocks: Vec<u64> = output.lines().filter_map(|line| line.trim().parse().ok()).collect();
    let volume = std::fs::read(image).unwrap();
    let content = |number: u64| &volume[number as usize * block..][..block];
    let (both, one) = (dir.join("both"), dir.join("one"));
    let linear = if blocks[1] == 0 { blocks[2] } else { blocks[1] };
    std::fs::write(&both, [content(blocks[0]), content(linear)].concat()).unwrap();
    std::fs::write(&one, content(blocks[2])).unwrap();
    let (both, one) = (both.display(), one.display());
    let writes = format!(
        "{open}\njw -b {},{linear} {both}\njw -r {}\njw -b {} {one}\njc\n",
        blocks[0], blocks[0], blocks[2]
    );
    let output = debugfs(dir, image, &writes);
    assert!(!output.contains("failed"), "{output}");
}

fn debugfs(dir: &Path, image: &Path, script: &str) -> String {
    let file = dir.join("script");
    std::fs::write(&file, script).unwrap();
    run(Command::new("debugfs").args(["-w", "-f"]).arg(&file).arg(image), &[0])
}

fn run(command: &mut Command, accepted: &[i32]) -> String {
    let output = command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").output().unwrap();
    let code = output.status.code().unwrap_or(-1);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(accepted.contains(&code), "{command:?} gave {code}:\n{text}{errors}");
    text
}
