//! Journals that debugfs writes. The transactions contain blocks of a file, so the content of the file shows which transactions were
//! replayed.

use std::collections::BTreeMap;

use ironmap::ErrorKind;
use ironmap::fs::ext4::{JournalFeatures, JournalState, Recovery};

use crate::common::command::run;
use crate::common::image::Image;
use crate::common::rng::Rng;
use crate::journal::{content, journal, set_sequence};

const FILE_BLOCKS: usize = 64;
const MAGIC: [u8; 4] = 0xC03B_3998_u32.to_be_bytes();

/// An image with the file `data`, whose content is known. The transactions in the journal overwrite blocks of this file.
struct Target {
    image: Image,
    block_size: usize,
    /// The device blocks of the file, in order.
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
        let image = Image::mke2fs("32M", &all);
        let data = image.beside("data");
        std::fs::write(&data, vec![0x11; FILE_BLOCKS * block_size]).unwrap();
        image.debugfs(&format!("write {} data\n", data.display()));
        let blocks = image.bmap("data", 0..FILE_BLOCKS as u64);
        let stat = image.ask_debugfs("stat data\n");
        let number = stat.split("Inode: ").nth(1).unwrap().split_whitespace().next().unwrap();
        let number = number.parse().unwrap();
        Self { image, block_size, blocks, number, script: String::new(), writes: 0 }
    }

    /// Adds a transaction. It contains blocks of the file, each filled with one byte, and blocks to revoke.
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
        let file = self.image.beside(&format!("write{}", self.writes));
        std::fs::write(&file, bytes).unwrap();
        self.writes += 1;
        self.script += &format!(
            "{command} {}\n",
            if writes.is_empty() { "/dev/null".into() } else { file.display().to_string() }
        );
    }

    /// Writes the transactions with debugfs. `open` contains the options of debugfs's command `jo`.
    fn write(&mut self, open: &str) {
        let script = format!("jo {open}\n{}jc\n", self.script);
        self.script.clear();
        let output = self.image.debugfs(&script);
        assert!(!output.contains("failed"), "{output}");
    }

    /// The content of the file after e2fsck has recovered a copy of the volume.
    fn oracle(&self) -> Vec<u8> {
        let copy = self.image.copy();
        copy.repair();
        let file = copy.beside("dumped");
        copy.ask_debugfs(&format!("dump data {}\n", file.display()));
        std::fs::read(file).unwrap()
    }

    fn ours(&self) -> ironmap::Result<Vec<u8>> {
        content(&self.image.open()?, self.number)
    }

    /// A map from the index of each changed block to the byte that fills the block.
    fn fills(&self, content: &[u8]) -> BTreeMap<usize, u8> {
        let blocks = content.chunks(self.block_size).enumerate();
        blocks.map(|(at, block)| (at, block[5])).filter(|(_, fill)| *fill != 0x11).collect()
    }

    fn agrees(&self) -> BTreeMap<usize, u8> {
        let before = std::fs::read(self.image.path()).unwrap();
        let (ours, oracle) = (self.ours().unwrap(), self.oracle());
        assert_eq!(self.fills(&ours), self.fills(&oracle));
        assert!(ours == oracle, "the fills agree, the bytes do not");
        assert!(std::fs::read(self.image.path()).unwrap() == before, "the image was written");
        self.fills(&ours)
    }

    fn recovery(&self) -> Recovery {
        match journal(&self.image).unwrap().state {
            JournalState::Recovered(recovery) => recovery,
            other => panic!("{other:?}"),
        }
    }
}

/// Every layout of tags, revocations and commit blocks that debugfs can make: block size, options of `mke2fs`, and options of debugfs's
/// command `jo`. On a volume without metadata_csum, `-c` makes checksums of version 1.
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
        // The block is first revoked and later written again, so the later copy is replayed.
        target.transaction("", &[(3, 0xC3)], &[]);
        target.write(open);
        if open == "-c" {
            // debugfs includes revoke blocks in the checksum. Linux and e2fsck omit them, and so refuse this journal.
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

/// A transaction can have more tags than fit into one descriptor block. It then has several descriptor blocks, and ironmap replays all of
/// them.
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
    let found = journal(&target.image).unwrap();
    assert_eq!((found.state, found.blocks), (JournalState::Clean, 1024));

    let mut target = Target::new(4096, &["-O", "64bit,metadata_csum"]);
    target.transaction("", &[(0, 0xA0)], &[]);
    target.transaction("", &[], &[0]);
    target.write("-c -v 3");
    let features = journal(&target.image).unwrap().features;
    assert!(features.contains(JournalFeatures::CSUM_V3 | JournalFeatures::REVOKE), "{features:?}");

    let none = Image::mke2fs("8M", &["-t", "ext2"]);
    assert_eq!(journal(&none).unwrap().state, JournalState::None);
}

#[test]
fn an_external_journal_is_refused_only_where_it_is_needed() {
    let log = Image::mke2fs("16M", &["-b", "4096", "-O", "journal_dev"]);
    let path = log.path();
    let uuid = run("blkid", &["-p", "-o", "value", "-s", "UUID", path.to_str().unwrap()]);
    let uuid = String::from_utf8(uuid).unwrap();
    let image = Image::mke2fs("16M", &["-t", "ext4", "-b", "4096", "-O", "^has_journal"]);
    image.debugfs(&format!("feature has_journal\nssv journal_uuid {}\n", uuid.trim()));
    assert_eq!(journal(&image).unwrap().state, JournalState::External);
    image.debugfs("feature needs_recovery\n");
    let error = journal(&image).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("journal_dev"), "{error}");
}

/// Changes a byte in a block of the journal.
fn flip(image: &Image, index: u64, byte: usize) {
    let block = image.bmap("<8>", std::iter::once(index))[0];
    let changed = image.block(block)[byte] ^ 0x40;
    image.poke_block(block, byte as u64, &[changed]);
}

/// The expected result for the journal of [`broken`]. The journal contains two transactions, in blocks 1 to 8. Each consists of a
/// descriptor, two copies of blocks and a commit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expect {
    /// Both transactions of the journal are replayed.
    Both,
    /// The recovery ends before the second transaction, so only the first one is replayed.
    First,
    /// The recovery ends before the first transaction, so none is replayed.
    None,
    Corrupt(&'static str),
}

/// The mke2fs options for the checksums that debugfs writes. Versions 2 and 3 need metadata_csum. Version 1 needs a volume without
/// metadata_csum.
fn options_for(open: &str) -> &'static [&'static str] {
    if open.contains("-v") {
        &["-O", "64bit,metadata_csum"]
    } else {
        &["-O", "64bit,^metadata_csum"]
    }
}

fn broken(open: &str, index: u64, byte: usize, expect: Expect) {
    let mut target = Target::new(4096, options_for(open));
    target.transaction("", &[(0, 0xA0), (1, 0xA1)], &[]);
    target.transaction("", &[(0, 0xB0), (2, 0xB2)], &[]);
    target.write(open);
    flip(&target.image, index, byte);
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
        // A block with a wrong magic number, type or sequence number ends the log.
        broken(version, 1, 0, None);
        broken(version, 1, 7, None);
        broken(version, 5, 0, First);
        broken(version, 8, 0, First);
        broken(version, 8, 11, First);
        broken(version, 8, 7, First);
        // A fault in the journal's superblock is an error.
        broken(version, 0, 0, Corrupt("h_magic"));
    }
    broken("", 0, 0x0F, Corrupt("s_blocksize"));
    broken("", 0, 0x10, Corrupt("s_maxlen"));
    broken("", 0, 0x1E, Corrupt("s_start"));
    // In checksum version 1, the commit block contains the checksum of the transaction.
    broken("-c", 2, 77, Corrupt("h_chksum"));
    broken("-c", 1, 0x0F, Corrupt("h_chksum"));
    broken("-c", 8, 0x13, Corrupt("h_chksum"));
    // Without checksums, a wrong block number can be detected only if the block is outside the volume.
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

/// If a copy of a block is broken, but a later transaction contains a new copy, the recovery continues.
#[test]
fn a_broken_copy_that_was_replaced_is_not_missed() {
    broken("-c -v 3", 2, 77, Expect::Both);
}

/// Random bytes in any block of the log give a result or an error, never a panic.
#[test]
fn noise_in_the_journal_is_survived() {
    for open in ["", "-c", "-c -v 2", "-c -v 3"] {
        let mut target = Target::new(1024, options_for(open));
        target.transaction("", &[(0, 0xA0), (1, 0xA1)], &[]);
        target.transaction("", &[], &[1]);
        target.transaction("", &[(0, 0xB0), (2, 0xB2)], &[]);
        target.write(open);
        let image = &target.image;
        let log = image.bmap("<8>", 0..12);
        let mut rng = Rng::new(1);
        for round in 0..400 {
            let at = log[round % log.len()];
            let kept = image.block(at);
            let mut block = kept.clone();
            for _ in 0..1 + round % 5 {
                // The first bytes of a block have the most effect on a recovery, so the test changes these bytes more often.
                let reach = [64, 1024][rng.below(2) as usize];
                block[rng.below(reach) as usize] = rng.next() as u8;
            }
            image.poke_block(at, 0, &block);
            let _ = image.open().and_then(|volume| content(&volume, target.number));
            image.poke_block(at, 0, &kept);
        }
    }
}

/// After the maximum transaction number, numbers continue from 0.
#[test]
fn transaction_numbers_wrap_around() {
    for (block_size, options, open) in FORMATS {
        let mut target = Target::new(block_size, options);
        set_sequence(&target.image, u32::MAX - 1);
        target.transaction("", &[(0, 0xA0), (1, 0xA1)], &[]);
        target.transaction("", &[(0, 0xB0), (2, 0xB2)], &[]);
        target.transaction("", &[(2, 0xC2)], &[]);
        target.transaction("", &[(3, 0xD3)], &[]);
        target.write(open);
        let expected = BTreeMap::from([(0, 0xB0), (1, 0xA1), (2, 0xC2), (3, 0xD3)]);
        assert_eq!(target.agrees(), expected, "{options:?} {open}");
    }
}

/// A revocation also cancels copies of the block in the same transaction.
#[test]
fn a_transaction_revokes_what_it_writes() {
    for (block_size, options, open) in FORMATS {
        let mut target = Target::new(block_size, options);
        target.transaction("", &[(0, 0xA0), (1, 0xA1), (2, 0xA2)], &[]);
        // debugfs 1.47.0 writes the next transaction over the commit block of this transaction. So this transaction is the last one.
        target.transaction("", &[(0, 0xB0), (1, 0xB1), (3, 0xB3)], &[1, 3]);
        target.write(open);
        // debugfs includes revoke blocks in the checksum. Linux and e2fsck omit them, and so refuse this journal.
        if open != "-c" {
            let expected = BTreeMap::from([(0, 0xB0), (2, 0xA2)]);
            assert_eq!(target.agrees(), expected, "{options:?} {open}");
        }
    }
}
