//! `ironmap dump`: the fields match those of debugfs and dumpe2fs.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::image::Image;
use crate::support::{Bench, succeed, text, tool};

fn dump(bench: &Bench, image: &Path, what: &[&str]) -> Value {
    let args = ["dump", image.to_str().unwrap()];
    bench.json(&[&args[..], what].concat())
}

/// The text after a word, up to white space or a comma.
fn word(said: &str, before: &str) -> String {
    let rest = said.split_once(before).unwrap_or_else(|| panic!("no {before:?}: {said}")).1;
    let end = |c: char| c.is_whitespace() || c == ',';
    rest.trim_start().split(end).next().unwrap().to_owned()
}

fn number(said: &str, before: &str) -> u64 {
    let word = word(said, before);
    match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => word.parse(),
    }
    .unwrap_or_else(|_| panic!("{before}: {word}"))
}

/// For each inode of a tree, `debugfs stat` prints the same links, owner, size, times, flags, generation and extents.
#[test]
fn inodes_are_those_of_debugfs() {
    for options in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext2", "-b", "4096"]] {
        let bench = Bench::with(options);
        let used: Vec<u64> = (1..=30).collect();
        for inode in used {
            let said = bench.ask(&format!("stat <{inode}>"));
            let found = dump(&bench, &bench.image(), &["inode", &inode.to_string()]);
            let is = |field: &str, expected: u64| {
                assert_eq!(found[field], expected, "inode {inode}, {field}: {said}");
            };
            is("i_links_count", number(&said, "Links:"));
            is("uid", number(&said, "User:"));
            is("gid", number(&said, "Group:"));
            is("i_flags", number(&said, "Flags:"));
            is("i_generation", number(&said, "Generation:"));
            is("i_mtime", mtime(&said));
            let mode = u64::from_str_radix(&word(&said, "Mode:"), 8).unwrap();
            assert_eq!(found["i_mode"].as_u64().unwrap() & 0o7777, mode, "{said}");
            if said.contains("Size:") {
                is("size", number(&said, "Size:"));
            }
            if let Some((_, blocks)) = said.split_once("EXTENTS:\n") {
                assert_eq!(extents(&found["extents"]), debugfs_extents(blocks), "{said}");
            }
        }
    }
}

/// Returns the modification time in whole seconds.
fn mtime(said: &str) -> u64 {
    let word = word(said, "mtime:");
    let seconds = word.split(':').next().unwrap().trim_start_matches("0x");
    u64::from_str_radix(seconds, 16).unwrap()
}

/// For each entry of a leaf: the first block in the file, the first block on the volume, and the number of blocks.
fn extents(node: &Value) -> Vec<(u64, u64, u64)> {
    let mut all = Vec::new();
    for entry in node["entries"].as_array().unwrap() {
        let field = |name: &str| entry[name].as_u64().unwrap();
        match entry.get("node") {
            Some(below) => all.extend(extents(below)),
            None => all.push((field("ee_block"), field("start"), field("blocks"))),
        }
    }
    all
}

/// Parses `(0-4):1-5, (7[u]):9`. Nodes of the tree are shown as `(ETB0):3`.
fn debugfs_extents(text: &str) -> Vec<(u64, u64, u64)> {
    let range = |text: &str| {
        let text = text.replace("[u]", "");
        let (first, last) = text.split_once('-').unwrap_or((&text, &text));
        (first.parse::<u64>().unwrap(), last.parse::<u64>().unwrap())
    };
    let words = text.split([',', '\n']).map(str::trim).filter(|word| word.starts_with('('));
    let words = words.filter(|word| !word.starts_with("(ETB"));
    words
        .map(|word| {
            let (file, volume) = word[1..].split_once("):").unwrap();
            let ((first, last), (start, _)) = (range(file), range(volume));
            (first, start, last - first + 1)
        })
        .collect()
}

/// The block numbers, counts, flags and checksum of each group match the output of dumpe2fs. If a group has a backup superblock, this
/// backup matches too.
#[test]
fn groups_are_those_of_dumpe2fs() {
    let bench = Bench::empty();
    for options in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext4", "-b", "1024", "-g", "512", "-O", "meta_bg,^resize_inode,^flex_bg"],
        &["-t", "ext3", "-b", "1024"],
    ] {
        let image = Image::mke2fs("40M", options);
        let said = text(&succeed(tool("dumpe2fs").arg(image.path())).stdout);
        let groups =
            said.split("\nGroup ").filter(|text| text.starts_with(|c: char| c.is_ascii_digit()));
        let groups: Vec<_> = groups.collect();
        assert!(groups.len() > 4);
        for (number_of, group) in groups.iter().enumerate() {
            let found = dump(&bench, &image.path(), &["group", &number_of.to_string()]);
            let is = |field: &str, expected: u64| {
                assert_eq!(found[field], expected, "group {number_of}, {field}: {group}");
            };
            is("block_bitmap", number(group, "Block bitmap at "));
            is("inode_bitmap", number(group, "Inode bitmap at "));
            is("inode_table", number(&group.replace('-', " "), "Inode table at "));
            is("free_clusters", number_before(group, " free blocks"));
            is("free_inodes", number_before(group, " free inodes"));
            is("directories", number_before(group, " directories"));
            assert_eq!(found["superblock"], group.contains(" superblock at"), "{group}");
            if group.contains("csum 0x") {
                is("bg_checksum", u64::from_str_radix(&checksum(group), 16).unwrap());
                assert_eq!(found["checksum_is_right"], true);
            }
            let backup = ["superblock", "--backup", &number_of.to_string()];
            if found["superblock"] == true {
                let backup = dump(&bench, &image.path(), &backup);
                assert_eq!(backup["s_block_group_nr"], number_of);
                assert_ne!(backup["checksum_is_right"], false);
            } else {
                let path = image.path();
                let args = [&["dump", path.to_str().unwrap()][..], &backup].concat();
                assert_eq!(bench.run(args).status.code(), Some(1));
            }
        }
    }
}

fn number_before(said: &str, behind: &str) -> u64 {
    let before = said.split_once(behind).unwrap_or_else(|| panic!("no {behind:?}: {said}")).0;
    before.rsplit([' ', '\n']).next().unwrap().parse().unwrap()
}

fn checksum(group: &str) -> String {
    let first = group.lines().next().unwrap();
    let rest = first.split_once("csum 0x").unwrap().1;
    rest.chars().take_while(char::is_ascii_hexdigit).collect()
}

/// `dumpe2fs -h` prints the same superblocks of the volume and of the journal.
#[test]
fn superblocks_are_those_of_dumpe2fs() {
    let image =
        Image::mke2fs("40M", &["-t", "ext4", "-L", "a label", "-E", "stride=4,stripe_width=8"]);
    let bench = Bench::empty();
    let said = text(&succeed(tool("dumpe2fs").arg("-h").arg(image.path())).stdout);
    let found = dump(&bench, &image.path(), &["superblock"]);
    for (field, before) in [
        ("s_inodes_count", "Inode count:"),
        ("s_blocks_count_lo", "Block count:"),
        ("s_r_blocks_count_lo", "Reserved block count:"),
        ("s_free_blocks_count_lo", "Free blocks:"),
        ("s_free_inodes_count", "Free inodes:"),
        ("s_first_data_block", "First block:"),
        ("s_blocks_per_group", "Blocks per group:"),
        ("s_inodes_per_group", "Inodes per group:"),
        ("s_mnt_count", "Mount count:"),
        ("s_first_ino", "First inode:"),
        ("s_inode_size", "Inode size:"),
        ("s_journal_inum", "Journal inode:"),
        ("s_raid_stride", "RAID stride:"),
        ("s_raid_stripe_width", "RAID stripe width:"),
        ("s_desc_size", "Group descriptor size:"),
        ("s_overhead_clusters", "Overhead clusters:"),
        ("s_checksum", "\nChecksum:"),
    ] {
        assert_eq!(found[field], number(&said, before), "{field}: {said}");
    }
    assert_eq!(found["s_volume_name"], "a label");
    let uuid = word(&said, "Filesystem UUID:").replace('-', "");
    assert_eq!(found["s_uuid"], uuid);
    let mut features: Vec<_> = found["features"].as_array().unwrap().iter().collect();
    let line = said.lines().find_map(|line| line.strip_prefix("Filesystem features:")).unwrap();
    let mut expected: Vec<_> = line.split_whitespace().collect();
    features.sort_by_key(|name| name.as_str().unwrap().to_owned());
    expected.sort_unstable();
    assert_eq!(features, expected);
    let journal = dump(&bench, &image.path(), &["journal"]);
    assert_eq!(journal["s_maxlen"], number(&said, "Total journal blocks:"));
    assert_eq!(journal["s_start"], number(&said, "Journal start:"));
    assert_eq!(journal["h_magic"], 0xC03B_3998_u32);
}

/// The position or the content of a block determines its kind. All bytes of the block are printed.
#[test]
fn a_block_is_what_its_place_says() {
    let bench = Bench::with(&["-t", "ext4", "-b", "1024", "-I", "128"]);
    let names: Vec<_> = (0..40).map(|n| format!("{n:0>200}")).collect();
    for name in &names {
        fs::write(bench.source().join(name), "").unwrap();
    }
    bench.debugfs("ea_set small user.long 0123456789012345678901234567890123456789");
    let image = bench.image();
    let bytes = fs::read(&image).unwrap();
    let group = dump(&bench, &image, &["group", "0"]);
    let block = |value: &Value| {
        let found = dump(&bench, &image, &["block", &value.to_string()]);
        let at = value.as_u64().unwrap() as usize * 1024;
        let hex: String = bytes[at..at + 1024].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found["bytes"], hex, "block {value}");
        found
    };
    assert_eq!(block(&1.into())["s_magic"], 0xEF53);
    assert_eq!(block(&8193.into())["s_block_group_nr"], 1);
    assert_eq!(block(&group["block"])["groups"][0]["bg_checksum"], group["bg_checksum"]);
    let inodes = block(&group["inode_bitmap"]);
    let used = inodes["bits"].as_u64().unwrap() - group["free_inodes"].as_u64().unwrap();
    assert_eq!((&inodes["kind"], &inodes["used"]), (&"inode_bitmap".into(), &used.into()));
    assert_eq!(block(&group["block_bitmap"])["kind"], "block_bitmap");
    let table = block(&group["inode_table"]);
    assert_eq!(table["inodes"][1]["i_mode"], dump(&bench, &image, &["inode", "2"])["i_mode"]);
    let root = dump(&bench, &image, &["inode", "2"]);
    let directory = block(&root["extents"]["entries"][0]["start"]);
    assert_eq!(directory["kind"], "directory");
    assert_eq!(
        (&directory["entries"][0]["name"], &directory["entries"][0]["inode"]),
        (&".".into(), &2.into())
    );
    let inode = word(&bench.ask("stat small"), "Inode:");
    let small = dump(&bench, &image, &["inode", &inode]);
    assert!(
        small["xattrs"].as_array().unwrap().iter().any(|x| x["name"] == "user.long"),
        "{small}"
    );
    let list = block(&small["xattr_block"]);
    assert_eq!(list["kind"], "xattrs");
    assert!(list["entries"].as_array().unwrap().iter().any(|x| x["name"] == "long"), "{list}");
    assert_eq!(block(&dump(&bench, &image, &["journal"])["block"])["kind"], "journal_superblock");
    for (what, number) in [("inode", "0"), ("inode", "999999"), ("block", "65536"), ("group", "8")]
    {
        let output = bench.run(["dump", "image", what, number]);
        assert_eq!(output.status.code(), Some(1), "{what} {number}");
        assert!(text(&output.stderr).contains("is outside"), "{}", text(&output.stderr));
    }
}

/// A damaged structure is printed with its values on disk. The command succeeds, because a repair needs these values.
#[test]
fn broken_structures_are_shown() {
    let bench = Bench::new();
    bench.debugfs("sif dir/large links_count 7");
    let inode = word(&bench.ask("stat dir/large"), "Inode:");
    let place = dump(&bench, &bench.image(), &["inode", &inode]);
    assert_eq!((&place["i_links_count"], &place["checksum_is_right"]), (&7.into(), &true.into()));
    let at = place["block"].as_u64().unwrap() * 4096 + place["offset"].as_u64().unwrap();
    let mut bytes = fs::read(bench.image()).unwrap();
    // Damages the magic number of the inode's extent tree.
    bytes[at as usize + 0x28] ^= 0xFF;
    fs::write(bench.image(), bytes).unwrap();
    let found = dump(&bench, &bench.image(), &["inode", &inode]);
    assert_eq!(found["checksum_is_right"], false);
    let problem = found["extents"]["problem"].as_str().unwrap();
    assert!(problem.contains("eh_magic"), "{problem}");
    assert!(found["problem"].as_str().unwrap().contains("i_checksum"), "{found}");
}
