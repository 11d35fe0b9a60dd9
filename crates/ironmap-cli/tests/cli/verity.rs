//! Tests hash trees of dm-verity, and compares them with the trees of veritysetup.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, succeed, text, tool};

const UUID: &str = "6f1c5a0e-4f0b-4b0e-9a53-1d2f6a7b8c9d";

fn root_hash(output: &[u8]) -> String {
    let output = text(output).to_lowercase();
    let line = output.lines().find_map(|line| line.strip_prefix("root hash:")).unwrap();
    line.trim().to_owned()
}

/// With the same salt and UUID, the hash tree has the same bytes as the tree of veritysetup. The test uses several block sizes, a single
/// data block, and numbers of blocks at which the tree gets another level.
#[test]
fn hash_trees_are_those_of_veritysetup() {
    require!([Need::Tool("veritysetup")]);
    let bench = Bench::empty();
    for (data_block, hash_block) in [(4096, 4096), (512, 1024), (1024, 4096), (4096, 512)] {
        for blocks in [1, 2, 16, 17, 128, 129, 1000, 5000] {
            let salt = if blocks % 2 == 0 { "-" } else { "00112233445566778899aabb" };
            let data = pattern(blocks * data_block, blocks as u64);
            fs::write(bench.path("data"), &data).unwrap();
            // A sparse file: ironmap computes the hashes of its holes without a read.
            if blocks == 5000 {
                let sparse = File::create(bench.path("data")).unwrap();
                sparse.set_len(data.len() as u64).unwrap();
                sparse.write_all_at(&data[..70_000], 1 << 20).unwrap();
            }
            for name in ["theirs", "ours"] {
                let _ = fs::remove_file(bench.path(name));
            }
            fs::write(bench.path("theirs"), "").unwrap();
            let [data_size, hash_size] = [data_block, hash_block].map(|size| size.to_string());
            let mut args = vec!["--salt", salt, "--uuid", UUID];
            args.extend(["--data-block-size", &data_size, "--hash-block-size", &hash_size]);
            let mut veritysetup = tool("veritysetup");
            veritysetup.arg("format").args(&args).args(["data", "theirs"]);
            let theirs = succeed(veritysetup.current_dir(bench.path("."))).stdout;
            let ours = bench.succeed([&["verity", "make"], &args[..], &["data", "ours"]].concat());
            let what = format!("{blocks} blocks of {data_block}, hash blocks of {hash_block}");
            assert_eq!(root_hash(&ours), root_hash(&theirs), "{what}");
            let [ours, theirs] = ["ours", "theirs"].map(|name| fs::read(bench.path(name)).unwrap());
            assert!(ours == theirs, "{what}");
        }
    }
}

/// The first damaged block is named, whether it is a block of the data or of the tree. veritysetup refuses the same files.
#[test]
fn the_first_damaged_block_is_named() {
    require!([Need::Tool("veritysetup")]);
    let bench = Bench::empty();
    let data = pattern(1000 * 4096, 7);
    fs::write(bench.path("data"), &data).unwrap();
    let root = root_hash(&bench.succeed(["verity", "make", "data", "hash"]));
    let other = root_hash(&bench.succeed(["verity", "make", "data", "other"]));
    let check = |root: &str| bench.run(["verity", "check", "data", "hash", root]);
    let said = check(&root);
    assert!(text(&said.stdout).contains("all 1000 blocks match"), "{}", text(&said.stderr));
    let verified = |root: &str| {
        let mut veritysetup = tool("veritysetup");
        veritysetup.args(["verify", "data", "hash", root]).current_dir(bench.path("."));
        veritysetup.output().unwrap().status.success()
    };
    assert!(verified(&root) && !verified(&other));
    assert!(text(&check(&other).stderr).contains(&format!("the root hash is {root}")));
    for (name, at, says) in [
        ("data", 4096 * 999 + 5, "the data block 999 (at byte 4091904)"),
        ("data", 4096 * 300, "the data block 300 (at byte 1228800)"),
        ("hash", 4096 * 2 + 77, "the hash block at byte 8192"),
        ("hash", 4096 + 3, "the root hash is"),
        ("hash", 0, "no dm-verity superblock"),
    ] {
        let file = File::options().write(true).open(bench.path(name)).unwrap();
        file.write_all_at(b"\0\0\0\0\0", at).unwrap();
        let output = check(&root);
        let error = text(&output.stderr);
        assert!(error.contains(says) && error.lines().count() == 1, "{error}");
        let code = if at == 0 { 3 } else { 4 };
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(!verified(&root), "{name} {at}");
    }
}

/// A tree that is appended to its data is found again, also by veritysetup, and is not appended twice.
#[test]
fn a_tree_is_appended_to_its_data() {
    require!([Need::Tool("veritysetup")]);
    let bench = Bench::empty();
    for (blocks, hash_block) in [(1_u64, "4K"), (333, "1K"), (4097, "64K")] {
        let data = pattern(blocks as usize * 4096, blocks);
        fs::write(bench.path("data"), &data).unwrap();
        let made = bench.succeed(["verity", "make", "--hash-block-size", hash_block, "data"]);
        let root = root_hash(&made);
        bench.succeed(["verity", "check", "data", &root]);
        let offset = text(&made);
        let offset = offset.split("hashes at ").nth(1).unwrap().split(',').next().unwrap();
        let mut veritysetup = tool("veritysetup");
        veritysetup.args(["verify", "--hash-offset", offset, "data", "data", &root]);
        succeed(veritysetup.current_dir(bench.path(".")));
        let after = fs::read(bench.path("data")).unwrap();
        assert!(after[..data.len()] == data);
        let again = bench.run(["verity", "make", "data"]);
        let says = format!("there is already a hash tree at byte {offset}");
        assert!(text(&again.stderr).contains(&says), "{}", text(&again.stderr));
        assert!(fs::read(bench.path("data")).unwrap() == after);
    }
}

/// Impossible calls are refused with one line, and change nothing.
#[test]
fn impossible_trees_are_refused() {
    let bench = Bench::empty();
    fs::write(bench.path("data"), pattern(8 * 4096, 1)).unwrap();
    fs::write(bench.path("odd"), pattern(4096 + 512, 1)).unwrap();
    bench.succeed(["mkfs", "-q", "volume", "8M"]);
    bench.succeed(["mkfs", "-q", "disk", "8M"]);
    let volume = fs::read(bench.path("volume")).unwrap();
    for (args, says) in [
        (&["make", "odd"][..], "4608 bytes are not a multiple of the data block size"),
        (&["make", "data", "volume"], "-F overwrites it"),
        (&["make", "volume@0+1M"], "name a HASH location for the tree"),
        (&["make", "--salt", "0", "data", "new"], "is not an even number of hexadecimal digits"),
        (&["make", "--hash-block-size", "3000", "data", "new"], "must be a power of two"),
        (&["make", "missing", "new"], "No such file"),
        (&["check", "data", "00"], "not 64 hexadecimal digits"),
        (&["check", "data", "volume", &"0".repeat(64)], "no dm-verity superblock"),
        (&["check", "data", &"0".repeat(64)], "there is no hash tree at its end"),
    ] {
        let output = bench.run([&["verity"], args].concat());
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(says), "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{args:?}: {error}");
        assert!(!bench.path("new").exists(), "{args:?}");
        assert!(fs::read(bench.path("volume")).unwrap() == volume, "{args:?}");
    }
}

/// Data and the hash tree can be two partitions of one image, raw or qcow2. The tree is that of veritysetup, and parts that overlap are
/// refused before a change.
#[test]
fn two_parts_of_one_image_have_data_and_tree() {
    require!([Need::Tool("veritysetup"), Need::Tool("qemu-img")]);
    let bench = Bench::empty();
    fs::create_dir(bench.path("tree")).unwrap();
    fs::write(bench.path("tree/file"), pattern(700_000, 5)).unwrap();
    for (prefix, name) in [("", "disk.img"), ("qcow2:", "disk.qcow2")] {
        let disk = format!("{prefix}{name}");
        let parts = ["-p", "root:8M:files=tree", "-p", "linux-generic:1M"];
        bench.succeed([&["disk", "-q", &disk], &parts[..]].concat());
        let [data, hash] = ["p1", "p2"].map(|part| format!("{disk}@{part}"));
        let made = bench.succeed(["verity", "make", "--salt", "-", &data, &hash]);
        let root = root_hash(&made);
        assert!(text(&made).starts_with(&format!("{hash}: ")));
        bench.succeed(["verity", "check", "-q", &data, &hash, &root]);
        bench.succeed(["clone", &data, &format!("{name}.data")]);
        bench.succeed(["clone", &hash, &format!("{name}.hash")]);
        let mut verify = tool("veritysetup");
        verify.arg("verify").args([&format!("{name}.data"), &format!("{name}.hash"), &root]);
        succeed(verify.current_dir(bench.path(".")));
        let before = fs::read(bench.path(name)).unwrap();
        let second = bench.run(["verity", "make", &data, &hash]);
        assert!(text(&second.stderr).contains("-F overwrites it"), "{}", text(&second.stderr));
        for (data, hash) in [(&data, &data), (&data, &disk), (&disk, &hash)] {
            let refused = bench.run(["verity", "make", "-F", data, hash]);
            assert!(text(&refused.stderr).contains("overlap"), "{}", text(&refused.stderr));
        }
        assert!(fs::read(bench.path(name)).unwrap() == before);
    }
}
