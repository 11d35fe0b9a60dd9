//! Impossible operations are refused with one line, the documented exit code, and no byte written.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::support::{Bench, succeed, text, tool};

struct Case {
    args: Vec<String>,
    code: i32,
    says: &'static str,
}

fn case(args: &[&str], code: i32, says: &'static str) -> Case {
    Case { args: args.iter().map(|arg| (*arg).to_owned()).collect(), code, says }
}

/// Runs all cases. Asserts that no case changes a file in the directory of the test.
fn refuse(bench: &Bench, cases: &[Case]) {
    let files = || -> Vec<_> {
        let entries = fs::read_dir(bench.dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = entries.filter(|path| path.is_file()).collect();
        files.sort();
        files.into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect()
    };
    let before = files();
    for Case { args, code, says } in cases {
        let output = bench.run(args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {error}");
        assert!(error.starts_with("ironmap: ") && error.lines().count() == 1, "{args:?}: {error}");
        assert!(error.contains(says), "{args:?}: {error}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
    }
    assert!(before == files(), "a refused command has changed a file");
}

#[test]
fn a_wrong_command_line_gets_one_line() {
    let bench = Bench::empty();
    refuse(
        &bench,
        &[
            case(&[], 2, "a command is missing"),
            case(&["frobnicate"], 2, "unrecognized subcommand 'frobnicate'"),
            case(&["ls"], 2, "<VOLUME:/PATH>"),
            case(&["map", "image"], 2, "write VOLUME:/PATH"),
            case(&["cat", "image:etc"], 2, "write VOLUME:/PATH"),
            case(&["ls", ":/etc"], 2, "the path of the volume is empty"),
            case(&["ls", "--frobnicate", "image:/"], 2, "--frobnicate"),
            case(&["ls", "image@99999999999999999999:/"], 2, "exceeds 64 bits"),
            case(&["cp", "image:/"], 2, "write ironmap cp <VOLUME:/PATH|PATH>... <DEST>"),
            case(&["cp", "here", "there"], 2, "write VOLUME:/PATH"),
            case(&["completions", "tcsh"], 2, "tcsh"),
            case(&["man", "missing"], 1, "missing: No such file or directory"),
        ],
    );
}

#[test]
fn content_that_is_no_volume_is_refused_by_name() {
    let bench = Bench::empty();
    let make = |name: &str, len: u64, at: u64, magic: &[u8]| {
        let file = File::create(bench.path(name)).unwrap();
        file.set_len(len).unwrap();
        file.write_all_at(magic, at).unwrap();
    };
    make("empty", 0, 0, b"");
    make("tiny", 1500, 0, b"");
    make("zeros", 1 << 20, 0, b"");
    make("xfs", 1 << 20, 0, b"XFSB");
    make("btrfs", 1 << 20, 65536 + 64, b"_BHRfS_M");
    make("iso", 1 << 20, 32768, b"\x01CD001");
    make("luks", 1 << 20, 0, b"LUKS\xBA\xBE\0\x02");
    make("gzip", 1 << 20, 0, b"\x1F\x8B\x08");
    make("swap", 1 << 20, 0, b"");
    succeed(tool("mkswap").arg(bench.path("swap")));
    refuse(
        &bench,
        &[
            case(&["info", "missing"], 3, "missing: No such file or directory"),
            case(&["ls", "missing:/"], 3, "missing: No such file or directory"),
            case(&["info", "."], 3, "the path must name a block device or an image file"),
            case(
                &["info", "/dev/null"],
                3,
                "the path must name a block device, an NVMe namespace or an image file",
            ),
            case(&["info", "empty"], 3, "empty: is empty"),
            case(&["info", "tiny"], 3, "tiny: has only 1500 bytes"),
            case(&["info", "zeros"], 3, "contains no ext2, ext3, ext4 or XFS file system"),
            case(&["info", "xfs"], 3, "XFS version 0"),
            case(&["info", "btrfs"], 3, "a btrfs file system"),
            case(&["info", "iso"], 3, "an ISO 9660 file system"),
            case(&["info", "luks"], 3, "a LUKS container"),
            case(&["info", "gzip"], 3, "unpack it first"),
            case(&["info", "swap"], 3, "a Linux swap area, not a file system"),
            case(&["info", "zeros@p1"], 3, "there is no partition table"),
            case(&["info", "zeros@1G"], 3, "past the end of the device"),
        ],
    );
}

#[test]
fn a_whole_disk_names_its_partitions() {
    let bench = Bench::empty();
    let disk = File::create(bench.path("disk")).unwrap();
    disk.set_len(64 << 20).unwrap();
    let made =
        tool("sgdisk").args(["-n", "2:0:+8M", "-c", "2:root"]).arg(bench.path("disk")).output();
    if made.is_err() {
        eprintln!("skipped: sgdisk is not installed");
        return;
    }
    refuse(
        &bench,
        &[
            case(
                &["ls", "disk"],
                3,
                "name a partition, as in @p2; its GPT has p2 (8 MiB, \"root\")",
            ),
            case(&["info", "disk@p1"], 3, "there is no partition 1; its GPT has p2"),
            case(
                &["info", "disk@p2"],
                3,
                "disk@p2: contains no ext2, ext3, ext4 or XFS file system",
            ),
        ],
    );
    // Damages both headers of the GPT.
    disk.write_all_at(b"x", 512 + 60).unwrap();
    disk.write_all_at(b"x", (64 << 20) - 512 + 60).unwrap();
    refuse(&bench, &[case(&["info", "disk@p2"], 4, "GPT header, HeaderCRC32")]);
}

#[test]
fn paths_that_lead_nowhere_are_named() {
    let bench = Bench::new();
    let at = |path: &str| bench.target(path);
    refuse(
        &bench,
        &[
            case(&["cat", &at("/missing")], 1, "image:/missing: no such entry (ENOENT)"),
            case(&["cat", &at("/missing/")], 1, "image:/missing/: no such entry (ENOENT)"),
            case(&["ls", &at("/dir/missing/x")], 1, "/dir/missing/x: missing: no such entry (E"),
            case(&["stat", &at("/missing")], 1, "image:/missing: no such entry (ENOENT)"),
            case(&["bench", &format!("vol:{}", at("/missing"))], 1, "/missing: no such entry"),
            case(&["stat", &at("/small/x")], 1, "(ENOTDIR)"),
            case(&["cat", &at("/dir")], 1, "/dir: is a directory (EISDIR)"),
            case(&["cat", &at("/loop-a")], 1, "(ELOOP)"),
            case(&["cat", &at("/dangling")], 1, "(ENOENT)"),
            case(&["cat", &at("/line\nbroken")], 1, "/line\\nbroken: "),
            case(&["map", &at("/missing")], 1, "(ENOENT)"),
            case(&["cp", &at("/dir"), "copy"], 1, "the option -r is missing (EISDIR)"),
            case(&["cp", &at("/missing"), "copy"], 1, "(ENOENT)"),
            case(&["cp", &at("/small"), "no/such/dir"], 1, "no/such: No such file or directory"),
            case(&["cp", &at("/small"), "copy/"], 1, "copy/: is not a directory (ENOTDIR)"),
            case(&["cp", &at("/small"), "/dev/null"], 1, "/dev/null: the name exists"),
            case(&["cp", &at("/small"), "/dev/stdout"], 1, "ironmap cat"),
            case(&["cp", "-r", &at("/dir"), "image"], 1, "image: Not a directory"),
        ],
    );
    assert!(!bench.path("copy").exists());
}

/// A copy never replaces its source, with any command and by any name of the source. It also never replaces a device of an integrity
/// device.
#[test]
fn the_volume_that_is_copied_from_is_not_replaced() {
    let bench = Bench::empty();
    for name in ["data", "tags", "other"] {
        File::create(bench.path(name)).unwrap().set_len(16 << 20).unwrap();
        bench.succeed(["mkfs", "-q", name]);
    }
    bench.succeed(["integrity", "format", "--force", "data,tags"]);
    fs::write(bench.path("small"), "small").unwrap();
    let [plain, volume] =
        ["other", "integrity:data,tags"].map(|volume| move |path: &str| format!("{volume}:{path}"));
    bench.succeed(["cp", "small", &plain("/other")]);
    for name in ["data", "tags"] {
        bench.succeed(["cp", "small", &volume(&format!("/{name}"))]);
    }
    std::os::unix::fs::symlink("other", bench.path("link")).unwrap();
    fs::hard_link(bench.path("other"), bench.path("second-name")).unwrap();
    let says = "the file is the source volume";
    refuse(
        &bench,
        &[
            case(&["cp", &plain("/other"), "other"], 1, says),
            case(&["cp", &plain("/other"), "link"], 1, says),
            case(&["cp", &plain("/other"), "second-name"], 1, says),
            case(&["cp", &plain("/other"), "."], 1, says),
            case(&["cp", "-r", &plain("/"), "."], 1, says),
            case(&["cp", "-T", &format!("./{}", plain("/other")), "other"], 1, says),
            case(&["cp", &volume("/data"), "data"], 1, says),
            case(&["cp", &volume("/tags"), "."], 1, says),
        ],
    );
}

#[test]
fn a_damaged_volume_is_code_4_with_the_place() {
    let bench = Bench::new();
    let file = File::options().write(true).open(bench.image()).unwrap();
    bench.debugfs("set_inode_field /dir/large block[0] 0x1234");
    refuse(&bench, &[case(&["cat", &bench.target("/dir/large")], 4, "extent header")]);
    file.set_len(20 << 20).unwrap();
    refuse(&bench, &[case(&["ls", &bench.target("/")], 4, "the device has only 20971520")]);
    // Changes the label without a new checksum. Reads then use a backup of the superblock. Writes and checks do not use a backup.
    file.set_len(64 << 20).unwrap();
    file.write_all_at(b"x", 1024 + 0x78).unwrap();
    drop(file);
    refuse(&bench, &[case(&["touch", &bench.target("/a")], 4, "superblock, s_checksum")]);
}

#[test]
fn encrypted_files_and_unknown_features_are_named() {
    let bench = Bench::with(&["-t", "ext4", "-O", "encrypt"]);
    bench.debugfs("set_inode_field /small flags 0x80800");
    bench.debugfs("set_inode_field /dir/empty flags 0x80800");
    refuse(
        &bench,
        &[
            case(
                &["cat", &bench.target("/small")],
                1,
                "encrypted, and the key is not available (ENOKEY)",
            ),
            case(&["cp", &bench.target("/small"), "copy"], 1, "(ENOKEY)"),
        ],
    );
    let listed = bench.run(["ls", &bench.target("/dir/empty")]);
    assert_eq!(listed.status.code(), Some(1));
    assert!(text(&listed.stderr).contains("(ENOKEY)"), "{}", text(&listed.stderr));
    bench.debugfs("set_super_value feature_incompat 0x800002c2");
    refuse(&bench, &[case(&["info", bench.image().to_str().unwrap()], 3, "the volume needs ")]);
}

#[test]
fn a_volume_in_use_is_refused() {
    let bench = Bench::new();
    let file = File::open(bench.image()).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    refuse(&bench, &[case(&["ls", &bench.target("/")], 3, "locked by another program")]);
    drop(file);
    // Like most programs, the writer has no lock on the image. ironmap must find the writer's open file. A refused command must not change
    // the image, not even its length.
    let writer = File::options().write(true).open(bench.image()).unwrap();
    let image = bench.image().to_str().unwrap().to_owned();
    let changed = || fs::metadata(&image).unwrap().modified().unwrap();
    let before = changed();
    let says = "open for writing by another program";
    refuse(
        &bench,
        &[
            case(&["mkfs", "--force", &image], 3, says),
            case(&["mkfs", "--force", &image, "1G"], 3, says),
            case(&["mkdir", &bench.target("/new")], 3, says),
            case(&["cp", &image, &bench.target("/new")], 3, says),
        ],
    );
    assert_eq!(changed(), before);
    drop(writer);
}

/// Wrong arguments are refused. Examples are a file as a mount point, `host:` as a volume, a TAGS device with content, and a bench with 0
/// rounds.
#[test]
fn arguments_of_another_kind_are_refused() {
    let bench = Bench::empty();
    for name in ["data", "tags", "other", "tail"] {
        File::create(bench.path(name)).unwrap().set_len(16 << 20).unwrap();
    }
    bench.succeed(["mkfs", "-q", "other"]);
    bench.succeed(["integrity", "format", "data,tags"]);
    bench.succeed(["integrity", "format", "tail"]);
    refuse(
        &bench,
        &[
            case(&["mount", "other", "data"], 1, "Not a directory"),
            case(&["mkfs", "tags"], 3, "the tags of an integrity device"),
            case(&["mkfs", "tail"], 3, "the tags of an integrity device"),
            case(&["mkfs", "host:other"], 2, "write ./host for a volume named host"),
            case(&["check", "host:other"], 2, "write ./host for a volume named host"),
            case(&["bench", "null:1m", "--bs", "0"], 2, "0 is not a size"),
            case(&["bench", "null:1m", "--iodepth", "0"], 2, "iodepth"),
            case(&["bench", "null:1m", "--numjobs", "0"], 2, "0 is not a number"),
            case(&["bench", "null:1m", "--rounds", "0"], 2, "0 is not a number"),
            case(&["bench", "null:1m", "--runtime", "nan"], 2, "nan is not a number"),
            case(&["bench", "null:1m", "--runtime", "inf"], 2, "inf is not a number"),
        ],
    );
}

#[test]
fn help_and_version_succeed() {
    let bench = Bench::empty();
    for args in [&["--help"][..], &["-h"], &["--version"], &["cp", "--help"], &["info", "-h"]] {
        assert!(!bench.succeed(args).is_empty(), "{args:?}");
    }
    let help = text(&bench.succeed(["--help"]));
    assert!(help.contains("Exit codes:") && help.contains("IMAGE@pN"), "{help}");
}
