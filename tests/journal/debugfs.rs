//! Journals written by debugfs into the blocks of a file, so that the file's content tells which copies were replayed.

use std::collections::BTreeMap;
use std::path::Path;

use ironmap::ErrorKind;
use ironmap::fs::ext4::{JournalFeatures, JournalState, Recovery};

use crate::image::{Image, content, inode, journal, open, run};

const FILE_BLOCKS: usize = 64;
const MAGIC: [u8; 4] = 0xC03B_3998_u32.to_be_bytes();

/// An image with one file, `data`, of known content, whose blocks are to be written through the journal.
struct Target {
    image: Image,
    block_size: usize,
    /// Device blocks of the file, in order.
    blocks: Vec<u64>,
    number: u64,
    script: String,
    writes: usize,
}

impl Target {
    fn new(block_size: usize, options: &[&str]) -> Self {
        let size = block_size.to_string();
        let mut all = vec!["-t", "ext4", "-b", &size, "-J", "size=4"];
        all.extend(options);
        let image = Image::make("32M", &all);
        let data = image.dir.path().join("data");
        std::fs::write(&data, vec![0x11; FILE_BLOCKS * block_size]).unwrap();
        image.debugfs(&format!("write {} data\n", data.display()));
        let script: String = (0..FILE_BLOCKS).map(|block| format!("bmap data {block}\n")).collect();
        // The commands are echoed on lines of their own.
        let blocks: Vec<u64> =
            image.debugfs(&script).lines().filter_map(|line| line.trim().parse().ok()).collect();
        assert_eq!(blocks.len(), FILE_BLOCKS);
        let stat = image.debugfs("stat data\n");
        let number = stat.split("Inode: ").nth(1).unwrap().split_whitespace().next().unwrap();
        let number = number.parse().unwrap();
        Self { image, block_size, blocks, number, script: String::new(), writes: 0 }
    }

    /// Adds a transaction: blocks of the file to fill with a byte each, blocks to revoke.
    fn transaction(&mut self, options: &str, writes: &[(usize, u8)], revokes: &[usize]) {
        let mut bytes = Vec::new();
        for (_, fill) in writes {
            let mut block = vec![*fill; self.block_size];
            if *fill == 0xEE {
                block[..4].copy_from_slice(&MAGIC);
            }
            bytes.extend(block);
        }
        let list = |blocks: &mut dyn Iterator<Item = usize>| {
            blocks.map(|block| self.blocks[block].to_string()).collect::<Vec<_>>().join(",")
        };
        let mut command = format!("jw {options}");
        if !writes.is_empty() {
            command += &format!(" -b {}", list(&mut writes.iter().map(|(block, _)| *block)));
        }
        if !revokes.is_empty() {
            command += &format!(" -r {}", list(&mut revokes.iter().copied()));
        }
        let file = self.image.dir.path().join(format!("write{}", self.writes));
        std::fs::write(&file, bytes).unwrap();
        self.writes += 1;
        self.script += &format!(
            "{command} {}\n",
            if writes.is_empty() { "/dev/null".into() } else { file.display().to_string() }
        );
    }

    /// Writes the transactions, with these options of `jo`.
    fn write(&mut self, open: &str) {
        let script = format!("jo {open}\n{}jc\n", self.script);
        self.script.clear();
        let output = self.image.debugfs(&script);
        assert!(!output.contains("failed"), "{output}");
    }

    /// The file as e2fsck's recovery of a copy leaves it.
    fn oracle(&self) -> Vec<u8> {
        let copy = self.image.copy("oracle");
        run("e2fsck", &["-fy", copy.to_str().unwrap()], &[0, 1]);
        let file = self.image.dir.path().join("dumped");
        let dump = format!("dump data {}", file.display());
        run("debugfs", &["-R", &dump, copy.to_str().unwrap()], &[0]);
        std::fs::read(file).unwrap()
    }

    fn ours(&self) -> ironmap::Result<Vec<u8>> {
        let volume = open(&self.image.path)?;
        content(&inode(&volume, self.number)?, &self.image.path)
    }

    /// The first byte of each block that is not as it was.
    fn fills(&self, content: &[u8]) -> BTreeMap<usize, u8> {
        let blocks = content.chunks(self.block_size).enumerate();
        blocks.map(|(at, block)| (at, block[5])).filter(|(_, fill)| *fill != 0x11).collect()
    }

    fn agrees(&self) -> BTreeMap<usize, u8> {
        let before = std::fs::read(&self.image.path).unwrap();
        let (ours, oracle) = (self.ours().unwrap(), self.oracle());
        assert_eq!(self.fills(&ours), self.fills(&oracle));
        assert!(ours == oracle, "the fills agree, the bytes do not");
        assert!(std::fs::read(&self.image.path).unwrap() == before, "the image was written");
        self.fills(&ours)
    }

    fn recovery(&self) -> Recovery {
        match journal(&self.image.path).unwrap().state {
            JournalState::Recovered(recovery) => recovery,
            other => panic!("{other:?}"),
        }
    }
}

/// Every layout of tags, revocations and commit blocks that debugfs can make: `mke2fs` options, `jo` options. Without
/// metadata_csum `-c` gives checksums of the first version.
const FORMATS: [(usize, &[&str], &str); 10] = [
    (1024, &["-O", "^64bit,^metadata_csum"], ""),
    (4096, &["-O", "64bit,^metadata_csum"], ""),
    (2048, &["-O", "^64bit,^metadata_csum,^extents"], ""),
    (1024, &["-O", "^64bit,^metadata_csum"], "-c"),
    (4096, &["-O", "64bit,^metadata_csum"], "-c"),
    (1024, &["-O", "^64bit,metadata_csum"], "-c -v 2"),
    (4096, &["-O", "64bit,metadata_csum"], "-c -v 2"),
    (1024, &["-O", "64bit,metadata_csum"], "-c -v 3"),
    (4096, &["-O", "^64bit,metadata_csum"], "-c -v 3"),
    (4096, &["-O", "64bit,metadata_csum"], "-c -v 3"),
];

#[test]
fn the_newest_copy_wins_and_revocations_take_back_what_is_older() {
    for (block_size, options, open) in FORMATS {
        let mut target = Target::new(block_size, options);
        target.transaction("", &[(0, 0xA0), (1, 0xA1), (2, 0xA2), (3, 0xA3)], &[]);
        target.transaction("", &[(1, 0xB1), (9, 0xEE)], &[]);
        target.transaction("", &[], &[2, 3, 40]);
        // Revoked before, written again: replayed.
        target.transaction("", &[(3, 0xC3)], &[]);
        target.write(open);
        if open == "-c" {
            // debugfs sums up revoke blocks too. Linux and e2fsck do not, and refuse this journal.
            let error = target.ours().unwrap_err();
            assert_eq!(error.place().unwrap().field, "h_chksum", "{error}");
            continue;
        }
        let fills = target.agrees();
        let expected = [(0, 0xA0), (1, 0xB1), (3, 0xC3), (9, 0xEE)];
        assert_eq!(fills, BTreeMap::from(expected), "{options:?} {open}");
        let recovery = target.recovery();
        assert_eq!((recovery.transactions, recovery.blocks), (4, 4), "{recovery:?}");
        assert_eq!(recovery.revoked, 2);
    }
}

#[test]
fn a_transaction_without_commit_is_not_replayed() {
    for (block_size, options, open) in FORMATS {
        let mut target = Target::new(block_size, options);
        target.transaction("", &[(0, 0xA0)], &[]);
        target.transaction("-c", &[(0, 0xB0), (1, 0xB1)], &[]);
        target.write(open);
        assert_eq!(target.agrees(), BTreeMap::from([(0, 0xA0)]), "{options:?} {open}");
    }
}

/// More tags than one descriptor block holds, so that a transaction has several.
#[test]
fn a_transaction_has_several_descriptor_blocks() {
    for (block_size, options, open) in FORMATS {
        let mut target = Target::new(block_size, options);
        let writes: Vec<_> = (0..3)
            .flat_map(|round| (0..FILE_BLOCKS).map(move |block| (block, 0x20 + round)))
            .collect();
        target.transaction("", &writes, &[]);
        target.write(open);
        assert_eq!(target.agrees().len(), FILE_BLOCKS);
    }
}

#[test]
fn a_clean_journal_says_so_and_names_its_features() {
    let target = Target::new(4096, &["-O", "64bit,metadata_csum"]);
    let found = journal(&target.image.path).unwrap();
    assert_eq!((found.state, found.blocks), (JournalState::Clean, 1024));

    let mut target = Target::new(4096, &["-O", "64bit,metadata_csum"]);
    target.transaction("", &[(0, 0xA0)], &[]);
    target.transaction("", &[], &[0]);
    target.write("-c -v 3");
    let features = journal(&target.image.path).unwrap().features;
    assert!(features.contains(JournalFeatures::CSUM_V3 | JournalFeatures::REVOKE), "{features:?}");

    let none = Image::make("8M", &["-t", "ext2"]);
    assert_eq!(journal(&none.path).unwrap().state, JournalState::None);
}

#[test]
fn an_external_journal_is_refused_only_where_it_is_needed() {
    let log = Image::make("16M", &["-b", "4096", "-O", "journal_dev"]);
    let uuid = run("blkid", &["-p", "-o", "value", "-s", "UUID", log.path.to_str().unwrap()], &[0]);
    let uuid = String::from_utf8(uuid.stdout).unwrap();
    let image = Image::make("16M", &["-t", "ext4", "-b", "4096", "-O", "^has_journal"]);
    image.debugfs(&format!("feature has_journal\nssv journal_uuid {}\n", uuid.trim()));
    assert_eq!(journal(&image.path).unwrap().state, JournalState::External);
    image.debugfs("feature needs_recovery\n");
    let error = journal(&image.path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("journal_dev"), "{error}");
}

/// Device offset of a block of the journal.
fn journal_offset(path: &Path, block_size: usize, index: u64) -> u64 {
    let bmap = format!("bmap <8> {index}");
    let output = run("debugfs", &["-R", &bmap, path.to_str().unwrap()], &[0]).stdout;
    let block: u64 = String::from_utf8(output).unwrap().trim().parse().unwrap();
    block * block_size as u64
}

fn flip(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], at).unwrap();
}

/// What becomes of the two transactions of [`broken`]. They stand in blocks 1 to 8: descriptor, two copies, commit, twice.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expect {
    /// Both transactions are replayed.
    Both,
    /// The log ends before the second.
    First,
    /// The log ends before the first.
    None,
    Corrupt(&'static str),
}

/// debugfs writes checksums of version 2 and 3 where the volume has metadata_csum, else of the first.
fn options_for(open: &str) -> &'static [&'static str] {
    if open.contains("-v") {
        &["-O", "64bit,metadata_csum"]
    } else {
        &["-O", "64bit,^metadata_csum"]
    }
}

fn broken(open: &str, index: u64, byte: u64, expect: Expect) {
    let mut target = Target::new(4096, options_for(open));
    target.transaction("", &[(0, 0xA0), (1, 0xA1)], &[]);
    target.transaction("", &[(0, 0xB0), (2, 0xB2)], &[]);
    target.write(open);
    let path = target.image.path.clone();
    flip(&path, journal_offset(&path, 4096, index) + byte);
    let what = format!("{open:?}, block {index}, byte {byte}");
    let fills = match target.ours() {
        Ok(ours) => target.fills(&ours),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
            let Expect::Corrupt(field) = expect else { panic!("{what}: {error}") };
            let place = error.place().unwrap();
            assert_eq!(place.field, field, "{what}: {error}");
            assert!(place.block.is_some(), "{what}: {error}");
            return;
        }
    };
    let expected: &[(usize, u8)] = match expect {
        Expect::Both => &[(0, 0xB0), (1, 0xA1), (2, 0xB2)],
        Expect::First => &[(0, 0xA0), (1, 0xA1)],
        Expect::None => &[],
        Expect::Corrupt(field) => panic!("{what}: opened, {field} is corrupt"),
    };
    assert_eq!(fills, BTreeMap::from_iter(expected.iter().copied()), "{what}");
}

#[test]
fn a_broken_block_ends_the_log_or_is_an_error_that_names_it() {
    use Expect::{Corrupt, First, None};
    for version in ["", "-c", "-c -v 2", "-c -v 3"] {
        // Magic, type, sequence: what follows is no longer the log.
        broken(version, 1, 0, None);
        broken(version, 1, 7, None);
        broken(version, 5, 0, First);
        broken(version, 8, 0, First);
        broken(version, 8, 11, First);
        broken(version, 8, 7, First);
        // The journal's superblock.
        broken(version, 0, 0, Corrupt("h_magic"));
    }
    broken("", 0, 0x0F, Corrupt("s_blocksize"));
    broken("", 0, 0x10, Corrupt("s_maxlen"));
    broken("", 0, 0x1E, Corrupt("s_start"));
    // The first version sums up the transaction in its commit block.
    broken("-c", 2, 77, Corrupt("h_chksum"));
    broken("-c", 1, 0x0F, Corrupt("h_chksum"));
    broken("-c", 8, 0x13, Corrupt("h_chksum"));
    // Without checksums a wrong target is seen only if it is outside.
    broken("", 1, 0x0C, Corrupt("t_blocknr"));
    for version in ["-c -v 2", "-c -v 3"] {
        broken(version, 0, 0x1F, Corrupt("s_checksum"));
        broken(version, 1, 0x0F, Corrupt("t_checksum"));
        broken(version, 5, 0xFFF, Corrupt("t_checksum"));
        broken(version, 6, 77, Corrupt("t_checksum"));
        broken(version, 8, 0x13, Corrupt("h_chksum"));
        broken(version, 8, 0x39, Corrupt("h_chksum"));
    }
}

/// A copy that nobody needs any more does not stop the recovery: a later one has replaced it.
#[test]
fn a_broken_copy_that_was_replaced_is_not_missed() {
    broken("-c -v 3", 2, 77, Expect::Both);
}

/// Every block of the log in turn filled with noise: an answer, never a panic. Seed 1 of a xorshift generator.
#[test]
fn noise_in_the_journal_is_survived() {
    use std::os::unix::fs::FileExt;
    for open in ["", "-c", "-c -v 2", "-c -v 3"] {
        let mut target = Target::new(1024, options_for(open));
        target.transaction("", &[(0, 0xA0), (1, 0xA1)], &[]);
        target.transaction("", &[], &[1]);
        target.transaction("", &[(0, 0xB0), (2, 0xB2)], &[]);
        target.write(open);
        let copy = target.image.copy("noise");
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&copy).unwrap();
        let first = journal_offset(&target.image.path, 1024, 0);
        let mut state = 1_u64;
        for round in 0..400_u64 {
            let at = first + (round % 12) * 1024;
            let mut block = vec![0; 1024];
            file.read_exact_at(&mut block, at).unwrap();
            let kept = block.clone();
            for _ in 0..1 + round % 5 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // The first bytes decide most.
                let reach = if state & 1 == 0 { 64 } else { 1024 };
                block[(state >> 8) as usize % reach] = (state >> 32) as u8;
            }
            file.write_all_at(&block, at).unwrap();
            if let Ok(volume) = crate::image::open(&copy)
                && let Ok(inode) = inode(&volume, target.number)
            {
                let _ = content(&inode, &copy);
            }
            file.write_all_at(&kept, at).unwrap();
        }
    }
}
