//! `ironmap tune`: each change gives the same bytes as with tune2fs. Other changes are refused, and leave the volume unchanged.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use ironmap::VolumeOptions;
use ironmap::fs::ext4::ROOT;
use ironmap::fs::{Credentials, NewFile};

use crate::common::image::Image;
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, IRONMAP, succeed, text, tool};

const TIME: &str = "1700000000";
const UUID: &str = "6f1c5a0e-4f0b-4b0e-9a53-1d2f6a7b8c9d";

/// Options of `tune`, applied one after the other: with ironmap to a volume, and with tune2fs to a copy of this volume.
const STEPS: &[&str] = &[
    "-L label",
    "-L sixteen-bytes-16",
    "-M /mnt/somewhere",
    "-e panic",
    "-e remount-ro",
    "-e continue",
    "-m 3.3",
    "-m 0",
    "-r 1234",
    "-u 1000 -g 1001",
    "-u root -g daemon",
    "-c 30 -C 7",
    "-c 16000",
    "-c 0",
    "-c -1",
    "-i 3",
    "-i 2m",
    "-i 5s",
    "-i 0",
    "-T 20200102",
    "-T 20390102131415",
    "-o ^acl,debug",
    "-o journal_data",
    "-o journal_data_ordered,bsdgroups,^user_xattr",
    "-o journal_data_writeback,uid16,nobarrier,block_validity,discard,nodelalloc",
    "-o ^journal_data_writeback",
    "-E hash_alg=tea",
    "-E hash_alg=legacy,stride=16,stripe_width=32",
    "-E hash_alg=half_md4,stripe-width=64",
    "-E mount_opts=noatime",
    "-O dir_index",
    "-O large_dir,ea_inode",
    "-O large_file,huge_file,dir_nlink",
    "-O extent",
    "-O verity",
    "-O encrypt",
    "-O read-only",
    "-O ^read-only",
    "-L several -m 7 -o acl -i 1w",
];

/// Further options of `tune`, for volumes with metadata checksums. The last change cannot be undone.
const WITH_CHECKSUMS: &[&str] = &[
    "-O metadata_csum_seed",
    "-O ^metadata_csum_seed",
    "-O metadata_csum_seed -U 6f1c5a0e-4f0b-4b0e-9a53-1d2f6a7b8c9d",
    "-U 00000000-4f0b-4b0e-9a53-1d2f6a7b8c9d",
    "-O fast_commit",
    "-O ^fast_commit",
    "-O casefold",
    "-O stable_inodes",
];

/// Further options of `tune`, for volumes without checksums.
const WITHOUT_CHECKSUMS: &[&str] = &["-O dir_index", "-U 6f1c5a0e-4f0b-4b0e-9a53-1d2f6a7b8c9d"];

fn fsck(image: &Path) {
    let said = succeed(tool("e2fsck").arg("-fn").arg(image));
    assert!(!text(&said.stdout).contains("? no"), "{}", text(&said.stdout));
}

fn field(image: &Path, name: &str) -> String {
    let said = text(&succeed(tool("dumpe2fs").arg("-h").arg(image)).stdout);
    let line = said.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("no {name}: {said}")).trim().to_owned()
}

/// Applies the options one after the other to both volumes: to one with ironmap, to the other with tune2fs. After each change, the two
/// files have the same bytes, including backups.
fn same_steps(options: &[&str], steps: &[&[&str]]) -> Image {
    let own = Image::mke2fs("40M", options);
    let bench = Bench::empty();
    let twin = bench.path("twin");
    fs::copy(own.path(), &twin).unwrap();
    for step in steps.iter().copied().flatten() {
        let words = step.split(' ');
        let mut tune2fs = tool("tune2fs");
        succeed(tune2fs.env("E2FSPROGS_FAKE_TIME", TIME).args(words.clone()).arg(&twin));
        let mut tune = bench.command();
        tune.env("SOURCE_DATE_EPOCH", TIME).arg("tune").args(words).arg(own.path());
        succeed(&mut tune);
        let (left, right) = (fs::read(own.path()).unwrap(), fs::read(&twin).unwrap());
        assert!(left == right, "{options:?}: {step}: the bytes differ");
        fsck(&own.path());
    }
    own
}

/// The superblock and its backups are the same as with tune2fs, for each layout of backups.
#[test]
fn every_change_is_that_of_tune2fs() {
    same_steps(&["-t", "ext4", "-b", "1024"], &[STEPS, WITH_CHECKSUMS]);
    let rest = &[&STEPS[..8], WITHOUT_CHECKSUMS];
    same_steps(&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^uninit_bg,^dir_index"], rest);
    same_steps(&["-t", "ext2", "-b", "1024", "-O", "^sparse_super,^resize_inode"], rest);
    let few = &[&STEPS[..8]];
    same_steps(&["-t", "ext3", "-b", "2048"], few);
    same_steps(&["-t", "ext4", "-b", "1024", "-O", "sparse_super2,^resize_inode"], few);
    same_steps(&["-t", "ext4", "-b", "1024", "-g", "256", "-O", "meta_bg,^resize_inode"], few);
    same_steps(&["-t", "ext4", "-b", "1024", "-O", "bigalloc"], few);
    same_steps(&["-t", "ext4", "-b", "4096", "-O", "uninit_bg,^metadata_csum"], few);
}

/// The kernel mounts the volume with the changed settings.
#[test]
fn the_kernel_mounts_it() {
    require!([Need::Root]);
    let steps: &[&str] = &[
        "-O metadata_csum_seed,large_dir -U 6f1c5a0e-4f0b-4b0e-9a53-1d2f6a7b8c9d",
        "-L here -e remount-ro -o journal_data -m 1",
    ];
    let own = same_steps(&["-t", "ext4", "-b", "1024"], &[steps]);
    let mount = own.mount("rw");
    fs::write(mount.dir().join("file"), "content").unwrap();
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(mount.dir().to_str().unwrap())).unwrap();
    let device = line.split(' ').next().unwrap().trim_start_matches("/dev/");
    let options = fs::read_to_string(format!("/proc/fs/ext4/{device}/options")).unwrap();
    for option in ["data=journal", "errors=remount-ro"] {
        assert!(options.lines().any(|line| line == option), "no {option}: {options}");
    }
    drop(mount);
    fsck(&own.path());
    assert_eq!(field(&own.path(), "Filesystem UUID"), UUID);
}

/// Generated UUIDs have the correct version.
#[test]
fn a_uuid_is_made() {
    let own = Image::mke2fs("8M", &["-t", "ext4", "-O", "metadata_csum_seed"]);
    let bench = Bench::empty();
    let mut seen = vec![field(&own.path(), "Filesystem UUID")];
    for (how, version) in [("random", '4'), ("random", '4'), ("time", '1'), ("time", '1')] {
        bench.succeed(["tune", "-U", how, own.path().to_str().unwrap()]);
        fsck(&own.path());
        let uuid = field(&own.path(), "Filesystem UUID");
        assert_eq!(uuid.chars().nth(14), Some(version), "{uuid}");
        assert!(!seen.contains(&uuid), "{uuid}");
        seen.push(uuid);
    }
    for how in ["clear", "null"] {
        bench.succeed(["tune", "-U", "random", own.path().to_str().unwrap()]);
        bench.succeed(["tune", "-U", how, own.path().to_str().unwrap()]);
        assert_eq!(field(&own.path(), "Filesystem UUID"), "<none>");
        fsck(&own.path());
    }
}

/// Impossible changes are refused with one line and the documented exit code, and no byte is changed.
#[test]
fn impossible_changes_are_refused_by_name() {
    let bench = Bench::empty();
    let image = |name: &str, options: &[&str]| {
        let image = Image::mke2fs("8M", &[&["-t", "ext4"], options].concat());
        fs::copy(image.path(), bench.path(name)).unwrap();
    };
    image("summed", &[]);
    image("groups", &["-O", "uninit_bg,^metadata_csum"]);
    image("stable", &["-O", "stable_inodes,metadata_csum_seed"]);
    let cases: &[(&str, &str, i32, &str)] = &[
        ("", "summed", 2, "nothing to change"),
        ("-L seventeen-bytes-17", "summed", 2, "at most 16"),
        ("-U 1", "summed", 2, "not a UUID"),
        ("-U random", "summed", 3, "add -O metadata_csum_seed"),
        ("-U random", "groups", 3, "use tune2fs -U"),
        ("-U random", "stable", 3, "stable_inodes"),
        ("-m 51", "summed", 2, "0 to 50"),
        ("-r 5000", "summed", 2, "at most 4096"),
        ("-r -1", "summed", 2, "invalid value '-1'"),
        ("-i -1", "summed", 2, "not an interval"),
        ("-c -16001", "summed", 2, "not a number of mounts"),
        ("-o acl -o debug", "summed", 2, "-o: the option may be given only once"),
        ("-O dir_index -O extent", "summed", 2, "-O: the option may be given only once"),
        ("-u 70000", "summed", 2, "not a user ID up to 65535"),
        ("-c 16001", "summed", 2, "at most 16000"),
        ("-i 2h", "summed", 2, "not an interval"),
        ("-T 2020", "summed", 2, "neither now nor"),
        ("-o unknown", "summed", 2, "not a default mount option"),
        ("-E hash_alg=siphash", "summed", 2, "the hash must be legacy, half_md4 or tea"),
        ("-E test_fs", "summed", 2, "use tune2fs -E"),
        ("-E stride=70000", "summed", 2, "not a number of blocks"),
        ("-e unknown", "summed", 2, "must be continue"),
        ("-O unknown", "summed", 2, "not a feature"),
        ("-O metadata_csum_seed", "groups", 2, "needs the feature metadata_csum"),
        ("-O quota", "summed", 3, "use tune2fs"),
        ("-O project", "summed", 3, "use tune2fs"),
        ("-O mmp", "summed", 3, "use tune2fs"),
        ("-O ^has_journal", "summed", 3, "use tune2fs"),
        ("-O ^metadata_csum", "summed", 3, "use tune2fs"),
        ("-O ^dir_index", "summed", 3, "e2fsck -f"),
        ("-O ^dir_index", "groups", 3, "e2fsck -f"),
        ("-O ^64bit", "summed", 3, "use resize2fs"),
        ("-O ^large_file", "summed", 3, "e2fsck -f"),
        ("-O bigalloc", "summed", 3, "when a volume is made"),
        ("-O ^extent", "summed", 3, "cannot be switched off"),
        ("-j", "summed", 2, "-j: this option makes a journal: use tune2fs"),
        ("-J size=4", "summed", 2, "-J: this option makes a journal: use tune2fs"),
        ("-I 512", "summed", 2, "-I: this option moves all inodes: use tune2fs"),
        ("-Q usrquota", "summed", 2, "-Q: this option makes quota files: use tune2fs"),
        ("-L x -z undo", "summed", 2, "-z: undo files are not supported"),
        ("-f -L x", "summed", 2, "-f: ironmap cannot force"),
        ("-L x", "noload:summed", 2, "noload"),
        ("-L x", "missing", 3, "No such file"),
    ];
    for (words, volume, code, what) in cases {
        let path = bench.path(volume.trim_start_matches("noload:"));
        let before = fs::read(&path).ok();
        let words = words.split(' ').filter(|word| !word.is_empty());
        let output = bench.run(["tune"].into_iter().chain(words.clone()).chain([*volume]));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{words:?}: {said}");
        assert!(said.contains(what) && said.lines().count() == 1, "{words:?}: {said}");
        assert!(before == fs::read(&path).ok(), "{words:?} changed the volume");
    }
}

/// If a volume needs recovery, `tune` recovers the journal before the change.
#[test]
fn a_volume_that_needs_recovery_is_recovered_first() {
    let bench = Bench::new();
    let volume = {
        let options = VolumeOptions::new().write(true);
        options.open(bench.image()).unwrap()
    };
    let who = Credentials::default();
    volume.fs().writable().unwrap().create(ROOT, b"made", NewFile::Directory, 0o755, &who).unwrap();
    volume.fs().sync().unwrap();
    fs::copy(bench.image(), bench.path("left")).unwrap();
    volume.close().unwrap();
    bench.succeed(["tune", "-L", "after", "left"]);
    fsck(&bench.path("left"));
    assert_eq!(field(&bench.path("left"), "Filesystem volume name"), "after");
    assert_eq!(bench.json(&["info", "--json", "left"])["clean"], true);
    assert!(text(&bench.succeed(["ls", "left:/"])).contains("made\n"));
}

/// `-l` without other options changes nothing. With other options, `-l` prints the result of the changes.
#[test]
fn the_list_is_that_of_info() {
    let bench = Bench::new();
    let before = fs::read(bench.image()).unwrap();
    let listed = bench.succeed(["tune", "-l", "image"]);
    assert_eq!(text(&listed), text(&bench.succeed(["info", "image"])));
    assert!(before == fs::read(bench.image()).unwrap());
    let listed = text(&bench.succeed(["tune", "-L", "shown", "-l", "image"]));
    assert!(listed.lines().any(|line| line == "Label:          shown"), "{listed}");
}

/// The program is called as tune2fs or e2label, and accepts the options of tune2fs or e2label. The results are the same, byte for byte.
#[test]
fn names_of_e2fsprogs_are_taken() {
    let own = Image::mke2fs("8M", &["-t", "ext4"]);
    let bench = Bench::empty();
    let twin = bench.path("twin");
    fs::copy(own.path(), &twin).unwrap();
    let called = |name: &str, args: &[&str]| {
        let link = bench.path(name);
        if !link.exists() {
            symlink(IRONMAP, &link).unwrap();
        }
        let mut ours = Command::new(link);
        ours.env("SOURCE_DATE_EPOCH", TIME).args(args).arg(own.path()).output().unwrap()
    };
    let same = || {
        let (ours, theirs) = (fs::read(own.path()).unwrap(), fs::read(&twin).unwrap());
        ours == theirs
    };
    let step = ["-m", "1", "-c", "-1", "-L", "named", "-e", "remount-ro"];
    let said = called("tune2fs", &step);
    assert!(said.status.success() && said.stderr.is_empty(), "{}", text(&said.stderr));
    succeed(tool("tune2fs").env("E2FSPROGS_FAKE_TIME", TIME).args(step).arg(&twin));
    assert!(same(), "{step:?}");
    let listed = text(&called("tune2fs", &["-l"]).stdout);
    assert!(listed.lines().any(|line| line == "Label:          named"), "{listed}");
    assert_eq!(text(&called("e2label", &[]).stdout), "named\n");
    assert_eq!(succeed(tool("e2label").arg(&twin)).stdout, b"named\n");
    // The second argument of e2label is the label, even if it begins with a dash.
    let mut relabel = Command::new(bench.path("e2label"));
    succeed(relabel.env("SOURCE_DATE_EPOCH", TIME).arg(own.path()).arg("-second"));
    succeed(tool("e2label").env("E2FSPROGS_FAKE_TIME", TIME).arg(&twin).arg("-second"));
    assert!(same(), "e2label");
    for (name, args, what) in
        [("tune2fs", &["-j"][..], "-j: "), ("e2label", &["a", "b"], "unexpected argument")]
    {
        let refused = called(name, args);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(what), "{said}");
    }
    assert!(same(), "a refusal changed the volume");
    fsck(&own.path());
}

/// Command lines of e2fsprogs. `LONG` is a path that is too long for its field in the superblock.
const E2FSPROGS_LINES: [&str; 48] = [
    "e2label image seventeen-bytes-17",
    "e2label image",
    "tune2fs -L eighteen-bytes-18- image",
    "tune2fs -L sixteen-bytes-16 image",
    "e2label image ''",
    "e2label image",
    "tune2fs -M LONG image",
    "tune2fs -L a -L b -m 1 -m 2 -e panic -e continue -c 5 -c 6 -C 5 -C 6 -i 5 -i 6 image",
    "tune2fs -u 5 -u 6 -g 5 -g 7 -M a -M b -r 5 -r 6 -T now -T 20200101 image",
    "tune2fs -U random -U 6f1c5a0e-4f0b-4b0e-9a53-1d2f6a7b8c9d -O metadata_csum_seed image",
    "tune2fs -E stride=4 -E stripe_width=8 image",
    "tune2fs -m 3 -r 7 image",
    "tune2fs -r 8 -m 4 image",
    "tune2fs -c -1 image",
    "tune2fs -i -1 image",
    "tune2fs -i -1s image",
    "tune2fs -r -1 image",
    "tune2fs -m -1 image",
    "tune2fs -c -16001 image",
    "tune2fs -c 16001 image",
    "tune2fs -C 16001 image",
    "tune2fs -O dir_index -O ^dir_index image",
    "tune2fs -o acl -o debug image",
    "tune2fs -m 51 image",
    "tune2fs -m x image",
    "tune2fs -e x image",
    "tune2fs -T x image",
    "tune2fs -o x image",
    "tune2fs -O x image",
    "tune2fs -E x image",
    "tune2fs -U x image",
    "tune2fs -u no-such-user image",
    "tune2fs -X image",
    "tune2fs -L x",
    "tune2fs -L x image image",
    "tune2fs image",
    "tune2fs",
    "tune2fs -L x missing",
    "tune2fs -L x zeros",
    "tune2fs -l missing",
    "tune2fs -l zeros",
    "e2label",
    "e2label -x",
    "e2label missing",
    "e2label missing x",
    "e2label zeros",
    "e2label zeros x",
    "e2label image a b",
];

/// If the program is called by a name of e2fsprogs, three rules hold:
///
/// - A text that is too long is shortened.
/// - The last of repeated options counts.
/// - Each refusal has the exit code of e2fsprogs.
///
/// After each command, the volume is the same as with e2fsprogs.
#[test]
fn the_names_of_e2fsprogs_end_as_they_do() {
    let image = Image::mke2fs("8M", &["-t", "ext4"]);
    let bench = Bench::empty();
    for side in ["ours", "theirs"] {
        fs::create_dir(bench.path(side)).unwrap();
        fs::copy(image.path(), bench.path(side).join("image")).unwrap();
        fs::write(bench.path(side).join("zeros"), [0; 100_000]).unwrap();
    }
    for name in ["tune2fs", "e2label"] {
        symlink(IRONMAP, bench.path(name)).unwrap();
    }
    let long = "d".repeat(80);
    for command in E2FSPROGS_LINES {
        let word = |word| match word {
            "''" => "",
            "LONG" => &long,
            word => word,
        };
        let words: Vec<_> = command.split(' ').map(word).collect();
        let run = |side: &str, program: &Path| {
            let mut run = tool(program.to_str().unwrap());
            run.env("SOURCE_DATE_EPOCH", TIME).env("E2FSPROGS_FAKE_TIME", TIME);
            run.args(&words[1..]).current_dir(bench.path(side)).output().unwrap()
        };
        let ours = run("ours", &bench.path(words[0]));
        let theirs = run("theirs", Path::new(words[0]));
        let said = text(&ours.stderr);
        assert_eq!(ours.status.code(), theirs.status.code(), "{command}: {said}");
        assert_eq!(
            ours.status.success(),
            said.is_empty() || said.contains("warning"),
            "{command}: {said}"
        );
        let warned = |said: &[u8]| {
            text(said).to_lowercase().contains("label too long")
                || text(said).contains("the label is too long")
        };
        assert_eq!(warned(&ours.stderr), warned(&theirs.stderr), "{command}: {said}");
        if words[0] == "e2label" {
            assert_eq!(text(&ours.stdout), text(&theirs.stdout), "{command}");
        }
        let [left, right] =
            ["ours", "theirs"].map(|side| fs::read(bench.path(side).join("image")).unwrap());
        assert!(left == right, "{command}: other bytes");
    }
    // Under its own name, the program refuses a text that is too long, and returns the exit codes of `ironmap`.
    let refused = bench.run(["tune", "-L", "seventeen-bytes-17", "ours/image"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    assert_eq!(bench.run(["tune", "-L", "x", "ours/missing"]).status.code(), Some(3));
    fsck(&bench.path("ours/image"));
}

/// A volume is not changed if only a backup of its superblock is readable, or if its end is missing.
#[test]
fn a_damaged_volume_is_not_changed() {
    let bench = Bench::with(&["-t", "ext4"]);
    let before = fs::read(bench.image()).unwrap();
    let image = bench.image().display().to_string();
    for rescue in [&["--superblock", "8193"][..], &["--truncated"]] {
        for change in [&["tune", "-L", "x", &image][..], &["mkfs", "-F", &image]] {
            let refused = bench.run([rescue, change].concat());
            assert_eq!(refused.status.code(), Some(2), "{rescue:?} {change:?}");
            assert!(text(&refused.stderr).contains("cannot be changed"), "{rescue:?} {change:?}");
        }
    }
    assert!(fs::read(bench.image()).unwrap() == before);
}
