//! `diff` reports exactly the differences that the kernel shows between two trees. `write` and `cp -` write exactly their input.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Output, Stdio};

use crate::changing::{fill, fsck};
use crate::common::image::{Image, scratch};
use crate::common::mounted::{Mounted, unmount};
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, IRONMAP, pattern, succeed, text, tool};

/// For each kind of difference, `diff` prints a line. The trees can be in volumes or on the host, and in either order. For equal trees,
/// `diff` prints nothing.
#[test]
fn diff_tells_every_difference() {
    require!([Need::Root, Need::Tool("setfattr")]);
    let bench = Bench::empty();
    fill(&bench.source(), true);
    let mut mke2fs = tool("mke2fs");
    succeed(mke2fs.args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("64M"));
    bench.succeed(["cp", "-a", "source", "image:/source"]);
    fs::copy(bench.image(), bench.path("other")).unwrap();
    let pairs = [["image:/source", "source"], ["source", "image:/source"], ["image:/", "other:/"]];
    for [a, b] in pairs {
        assert_eq!(text(&bench.succeed(["diff", a, b])), "", "{a} {b}");
    }
    let source = bench.source();
    fs::set_permissions(source.join("nothing"), fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(source.join("small"), Some(5), Some(6)).unwrap();
    fs::File::options()
        .write(true)
        .open(source.join("large"))
        .unwrap()
        .write_all_at(b"?!", 9 << 20)
        .unwrap();
    fs::write(source.join("dir/more"), "more").unwrap();
    fs::remove_file(source.join("sparse")).unwrap();
    fs::remove_file(source.join("link")).unwrap();
    symlink("large", source.join("link")).unwrap();
    fs::remove_dir(source.join("dir/empty")).unwrap();
    fs::write(source.join("dir/empty"), "").unwrap();
    fs::write(source.join("program"), "short").unwrap();
    succeed(tool("setfattr").args(["-n", "user.colour", "-v", "red"]).arg(source.join("small")));
    let said = bench.run(["diff", "image:/source", "source"]);
    assert_eq!((said.status.code(), text(&said.stderr)), (Some(1), String::new()));
    let found: BTreeSet<String> = text(&said.stdout).lines().map(str::to_owned).collect();
    let begins = [
        "/again: owner: 0:0, 5:6",
        "/again: user.colour: \"gr\\xfcn\", \"red\"",
        "/dir/empty: type: directory, regular empty file",
        "/large: content: differs from byte 9437184 on",
        "/link: owner: 12:13, 0:0",
        "/link: target: small, large",
        "/nothing: mode: 644, 600",
        "/program: size: 5000, 5",
        "/small: owner: 0:0, 5:6",
        "/small: user.colour: \"gr\\xfcn\", \"red\"",
        "Only in image:/source: sparse",
        "Only in source/dir: more",
    ];
    for line in begins {
        assert!(found.contains(line), "{line} in {found:#?}");
    }
    // A write to the file `program` removes its capability. It also removes the set-id bits if the writer is not root.
    let others: Vec<_> = found.iter().filter(|line| !begins.contains(&line.as_str())).collect();
    assert!(others.iter().all(|line| line.starts_with("/program: ")), "{others:?}");
    let without = bench.run(["diff", "-x", "*", "image:/source", "source"]);
    assert_eq!((without.status.code(), text(&without.stdout)), (Some(0), String::new()));
    let missing = bench.run(["diff", "image:/nope", "source"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("image:/nope: no such entry"));
}

/// Ranges that are holes in both files are not read. Therefore the comparison of files of 8 EiB with a few blocks is fast. A hole equals
/// zeros.
#[test]
fn diff_skips_holes() {
    require!([Need::Root, Need::Tool("mkfs.xfs")]);
    const LARGEST: u64 = i64::MAX as u64;
    // Most file systems of a host support files of this size.
    const LARGE: u64 = 8 << 40;
    let bench = Bench::empty();
    let sparse = |path: &Path, size: u64, blocks: &[(u64, u8)]| {
        let file = fs::File::create(path).unwrap();
        file.set_len(size).unwrap();
        for (pos, byte) in blocks {
            file.write_all_at(&[*byte; 5000], *pos).unwrap();
        }
    };
    // XFS supports the largest files.
    let mounted = Mounted::new("mkfs.xfs -q", 320, "noatime");
    let root = mounted.dir();
    for (name, blocks) in [
        ("first", &[(7, 1), (1 << 50, 2)][..]),
        ("same", &[(7, 1), (1 << 40, 0), (1 << 50, 2)]),
        ("other", &[(7, 1), (1 << 50, 2), (1 << 60, 3)]),
        ("end", &[(7, 1), (1 << 50, 2), (LARGEST - 5000, 3)]),
    ] {
        sparse(&root.join(name), LARGEST, blocks);
    }
    sparse(&root.join("large"), LARGE, &[(7, 1), (1 << 42, 2)]);
    let dir = scratch();
    let host = dir.path().join("host");
    sparse(&host, LARGE, &[(7, 1), (1 << 42, 4)]);
    let path = |name: &str| root.join(name).to_str().unwrap().to_owned();
    let host = host.to_str().unwrap();
    let differs = |a: &str, b: &str, pos: Option<u64>| {
        let said = bench.run(["diff", a, b]);
        let lines: Vec<String> = text(&said.stdout).lines().map(str::to_owned).collect();
        let content: Vec<_> = lines.iter().filter(|line| line.contains("content")).collect();
        let expected = pos.map(|pos| format!("content: differs from byte {pos} on"));
        assert_eq!(content.len(), usize::from(pos.is_some()), "{a} {b}: {lines:?}");
        assert!(expected.is_none_or(|expected| content[0].ends_with(&expected)), "{lines:?}");
    };
    let pairs = [("same", None), ("other", Some(1 << 60)), ("end", Some(LARGEST - 5000))];
    for (name, pos) in pairs {
        differs(&path("first"), &path(name), pos);
    }
    assert!(unmount(root));
    succeed(tool("cp").arg("--sparse=always").arg(mounted.image()).arg(bench.image()));
    for (name, pos) in pairs {
        let (first, other) = (bench.target("/first"), bench.target(&format!("/{name}")));
        differs(&first, &other, pos);
    }
    differs(&bench.target("/large"), host, Some(1 << 42));
}

fn with_input(bench: &Bench, args: &[&str], input: &[u8]) -> Output {
    let mut child = bench
        .command()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    // A refused command does not read its input, so the write to the pipe may fail.
    let _ = pipe.write_all(input);
    drop(pipe);
    child.wait_with_output().unwrap()
}

/// A command writes data from standard input, and the kernel reads the same data. The command makes a new file, or writes into an existing
/// file: within it, at its end, or far past its end.
#[test]
fn standard_input_becomes_a_file() {
    require!([Need::Root]);
    let bench = Bench::empty();
    let own = Image::mke2fs("64M", &["-t", "ext4", "-b", "1024"]);
    let at = |path: &str| format!("{}:{path}", own.path().display());
    let writes = |args: &[&str], input: &[u8]| {
        let said = with_input(&bench, args, input);
        assert_eq!((said.status.code(), text(&said.stderr)), (Some(0), String::new()), "{args:?}");
        fsck(&own.path());
    };
    let large = pattern((3 << 20) + 77, 5);
    writes(&["write", &at("/new")], b"first\n");
    writes(&["write", "--append", &at("/new")], b"second\n");
    writes(&["write", "--append", &at("/log")], b"begins\n");
    writes(&["write", &at("/over")], &large);
    writes(&["write", "--offset", "1000", &at("/over")], b"in the midst");
    writes(&["write", "--offset", "1M", &at("/hole")], b"far");
    writes(&["write", &at("/short")], &large);
    writes(&["write", &at("/short")], b"short");
    writes(&["write", &at("/empty")], b"");
    writes(&["cp", "-", &at("/copy")], &large);
    bench.succeed(["ln", "-s", "new", &at("/link")]);
    writes(&["write", "-a", &at("/link")], b"third\n");
    bench.succeed(["mkdir", &at("/dir")]);
    // If the input cannot be read, the file keeps its content.
    for input in [">/dev/null", "</"] {
        let command = format!("{IRONMAP} write {} 0{input}", at("/copy"));
        let refused = tool("sh").args(["-c", &command]).output().unwrap();
        assert_eq!(refused.status.code(), Some(1), "{input}: {}", text(&refused.stderr));
    }
    for (args, code) in [
        (&["write", &at("/dir")][..], 1),
        (&["write", &at("/no/file")], 1),
        (&["write", "--append", "--offset", "1", &at("/new")], 2),
        (&["cp", "-", &at("/dir")], 2),
        (&["cp", "-a", "-", &at("/x")], 2),
    ] {
        assert_eq!(with_input(&bench, args, b"x").status.code(), Some(code), "{args:?}");
    }
    // If the volume is full, an error is reported, and the volume is sound.
    let said = with_input(&bench, &["write", &at("/full")], &pattern(70 << 20, 6));
    assert!(said.status.code() == Some(1) && text(&said.stderr).contains("ENOSPC"));
    fsck(&own.path());
    let mount = own.mount("ro");
    let read = |name: &str| fs::read(mount.dir().join(name)).unwrap();
    assert_eq!(text(&read("new")), "first\nsecond\nthird\n");
    assert_eq!(text(&read("log")), "begins\n");
    let mut over = large.clone();
    over[1000..1012].copy_from_slice(b"in the midst");
    assert!(read("over") == over);
    assert!(read("hole") == [&vec![0; 1 << 20][..], b"far"].concat());
    assert_eq!((text(&read("short")), read("empty").len()), ("short".to_owned(), 0));
    assert!(read("copy") == large);
}
