//! Tests `cp`: the copy equals the source, and no file outside the destination is changed.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, IRONMAP, pattern, text, tool, xattr};
use rustix::process::{Pid, Signal, kill_process};

fn fsck(image: &Path) {
    crate::support::succeed(tool("e2fsck").arg("-fn").arg(image));
}

fn names(root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            found.insert(entry.path().strip_prefix(root).unwrap().to_owned());
            if entry.file_type().unwrap().is_dir() {
                pending.push(entry.path());
            }
        }
    }
    found.remove(Path::new("lost+found"));
    found
}

/// A tree is copied into an image and out of it again. Names, types, modes, times, owners, contents, links and attributes stay the same.
#[test]
fn a_tree_comes_out_as_it_went_in() {
    let bench = Bench::new();
    bench.succeed(["cp", "-r", &bench.target("/"), "copy"]);
    let (source, copy) = (bench.source(), bench.path("copy"));
    assert_eq!(names(&copy), names(&source));
    for name in names(&source) {
        let (a, b) = (source.join(&name), copy.join(&name));
        let (from, to) = (fs::symlink_metadata(&a).unwrap(), fs::symlink_metadata(&b).unwrap());
        assert_eq!(to.mode(), from.mode(), "{name:?}");
        assert_eq!((to.uid(), to.gid()), (from.uid(), from.gid()), "{name:?}");
        if from.is_symlink() {
            assert_eq!(fs::read_link(&b).unwrap(), fs::read_link(&a).unwrap());
            continue;
        }
        assert_eq!(to.mtime(), from.mtime(), "{name:?}");
        assert_eq!(to.nlink() > 1, from.nlink() > 1, "{name:?}");
        assert_eq!(xattr(&b, "user.colour"), xattr(&a, "user.colour"), "{name:?}");
        if from.is_file() {
            assert!(fs::read(&b).unwrap() == fs::read(&a).unwrap(), "{name:?}");
        }
    }
    let inode = |name: &str| fs::metadata(copy.join(name)).unwrap().ino();
    assert_eq!(inode("small"), inode("dir/again"));
    let sparse = fs::metadata(copy.join("sparse")).unwrap();
    assert!(sparse.blocks() * 512 < 1 << 20, "{} blocks for 12 KiB of data", sparse.blocks());
}

/// A copy of a file without an access control list does not inherit the default list of its new directory.
#[test]
fn a_copy_takes_over_no_access_list() {
    let bench = Bench::new();
    let dir = bench.path("hands-down");
    fs::create_dir(&dir).unwrap();
    crate::support::succeed(tool("setfacl").args(["-d", "-m", "user:7:rwx"]).arg(&dir));
    bench.succeed(["cp", "-r", &bench.target("/"), "hands-down/copy"]);
    let copy = dir.join("copy");
    for name in names(&copy) {
        for list in ["system.posix_acl_access", "system.posix_acl_default"] {
            assert_eq!(xattr(&copy.join(&name), list), None, "{name:?}");
        }
    }
}

/// A copy keeps the nanoseconds of times. Unwritten extents of the source become holes. debugfs prepares the source, because mke2fs cannot
/// make these times and extents.
#[test]
fn nanoseconds_are_kept_and_unwritten_blocks_become_holes() {
    let bench = Bench::new();
    bench.debugfs("set_inode_field /small mtime_extra 493827156");
    bench.debugfs("fallocate /nothing 0 255");
    bench.debugfs("set_inode_field /nothing size 1048576");
    bench.succeed(["cp", &bench.target("/small"), "one"]);
    let one = fs::metadata(bench.path("one")).unwrap();
    assert_eq!((one.mtime(), one.mtime_nsec()), (-86_400, 123_456_789));
    let map = bench.json(&["map", "--json", &bench.target("/nothing")]);
    assert_eq!(map["extents"][0]["flags"][1], "unwritten");
    bench.succeed(["cp", &bench.target("/nothing"), "two"]);
    assert_eq!(fs::read(bench.path("two")).unwrap(), vec![0; 1 << 20]);
    assert!(fs::metadata(bench.path("two")).unwrap().blocks() < 64);
}

/// If DEST is a directory, the copy is made in it. Otherwise DEST is the name of the copy.
#[test]
fn dest_means_what_it_means_to_cp() {
    let bench = Bench::new();
    fs::create_dir(bench.path("into")).unwrap();
    bench.succeed(["cp", &bench.target("/dir/link"), "into"]);
    bench.succeed(["cp", "-r", &bench.target("/dir/link"), "into/as-link"]);
    bench.succeed(["cp", "-r", &bench.target("/dir"), "into"]);
    bench.succeed(["cp", "-r", &bench.target("/dir/"), "new"]);
    assert_eq!(fs::read(bench.path("into/link")).unwrap(), b"small\n");
    assert_eq!(fs::read_link(bench.path("into/as-link")).unwrap(), Path::new("../small"));
    assert_eq!(fs::read(bench.path("into/dir/.hidden")).unwrap(), b"hidden");
    assert_eq!(fs::read(bench.path("new/.hidden")).unwrap(), b"hidden");
    // The second copy has the same destination as the first: files are replaced, and directories are filled.
    fs::write(bench.path("into/dir/.hidden"), "something longer").unwrap();
    bench.succeed(["cp", "-r", &bench.target("/dir"), "into"]);
    assert_eq!(fs::read(bench.path("into/dir/.hidden")).unwrap(), b"hidden");
}

/// The program copies several trees of a volume. GNU cp copies the same trees on the host, with the same result.
#[test]
fn several_sources_are_one_copy() {
    let bench = Bench::empty();
    let source = bench.source();
    for (name, content) in [("x/f", "one"), ("y/f", "two"), ("x/d/g", "three"), ("y/d/h", "four")] {
        fs::create_dir_all(source.join(name).parent().unwrap()).unwrap();
        fs::write(source.join(name), content).unwrap();
    }
    fs::hard_link(source.join("x/f"), source.join("f2")).unwrap();
    fs::hard_link(source.join("x/d/g"), source.join("g2")).unwrap();
    symlink("nowhere", source.join("link")).unwrap();
    fs::hard_link(source.join("link"), source.join("link2")).unwrap();
    // mke2fs would copy a symbolic link with two names as two links. Therefore `ironmap mkfs` makes the image.
    bench.succeed(["mkfs", "-q", "-d", "source", "image", "8M"]);
    for sources in [
        "x/f f2",
        "f2 x/f g2 x/d",
        "x y f2 g2",
        "link link2",
        "x/f y/f",
        "x/f y/f f2",
        "x/d y/d g2",
        "x/f x/f",
        "x/d x/d g2",
        "x x/d",
    ] {
        let (ours, theirs) = (bench.path("ours"), bench.path("theirs"));
        fs::create_dir(&ours).unwrap();
        fs::create_dir(&theirs).unwrap();
        let mut cp = tool("cp");
        cp.arg("-a").args(sources.split(' ').map(|name| source.join(name))).arg(&theirs);
        let cp = cp.output().unwrap();
        let mut command = bench.command();
        command.args(["cp", "-a"]).args(sources.split(' ').map(|name| format!("image:/{name}")));
        let output = command.arg("ours").output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), cp.status.code(), "{sources}: {errors}");
        let refused = errors
            .lines()
            .filter(|line| line.contains("an earlier source has created this file"))
            .count();
        assert_eq!(refused, usize::from(!cp.status.success()), "{sources}: {errors}");
        assert_eq!(names(&ours), names(&theirs), "{sources}");
        let groups = |root: &Path| -> BTreeSet<BTreeSet<PathBuf>> {
            let inode = |name: &Path| fs::symlink_metadata(root.join(name)).unwrap().ino();
            let all = names(root);
            let same = |one: &PathBuf| {
                all.iter().filter(|other| inode(other) == inode(one)).cloned().collect()
            };
            all.iter().map(same).collect()
        };
        assert_eq!(groups(&ours), groups(&theirs), "{sources}: hard links");
        for name in names(&theirs).iter().filter(|name| theirs.join(name).is_file()) {
            let read = |root: &Path| fs::read(root.join(name)).unwrap();
            assert_eq!(read(&ours), read(&theirs), "{sources}: {}", name.display());
        }
        fs::remove_dir_all(&ours).unwrap();
        fs::remove_dir_all(&theirs).unwrap();
    }
}

/// If another source has replaced a copy, no hard link to this copy is made. (GNU cp would make a link with the wrong content, because it
/// writes into existing files.)
#[test]
fn a_replaced_file_gets_no_link() {
    let bench = Bench::empty();
    for (name, content) in [("x/f", "one"), ("y/f", "two")] {
        fs::create_dir_all(bench.source().join(name).parent().unwrap()).unwrap();
        fs::write(bench.source().join(name), content).unwrap();
    }
    fs::hard_link(bench.source().join("x/f"), bench.source().join("f2")).unwrap();
    crate::support::succeed(
        tool("mke2fs").args(["-qF", "-d"]).arg(bench.source()).arg(bench.image()).arg("8M"),
    );
    fs::create_dir(bench.path("out")).unwrap();
    bench.succeed(["cp", "-a", "image:/x/.", "image:/y/.", "image:/f2", "out"]);
    assert_eq!(fs::read(bench.path("out/f")).unwrap(), b"two");
    assert_eq!(fs::read(bench.path("out/f2")).unwrap(), b"one");
}

/// A directory on standard input is refused. `ironmap write` refuses it too.
#[test]
fn a_directory_on_standard_input_is_refused() {
    let bench = Bench::new();
    for args in [["cp", "-", "image:/new"].as_slice(), &["write", "image:/new2"]] {
        let input = fs::File::open(bench.source()).unwrap();
        let output = bench.command().args(args).stdin(input).output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {errors}");
        assert_eq!(errors, "ironmap: standard input: Is a directory\n", "{args:?}");
    }
    assert_eq!(bench.run(["stat", "image:/new"]).status.code(), Some(1));
    fsck(&bench.image());
}

/// `cp` does not follow symbolic links below DEST. In the test, a link has the name of a copied file, and a link has the name of a copied
/// directory.
#[test]
fn links_below_dest_lead_nowhere() {
    let bench = Bench::new();
    fs::create_dir(bench.path("outside")).unwrap();
    fs::write(bench.path("outside/file"), "untouched").unwrap();
    fs::create_dir_all(bench.path("copy/dir")).unwrap();
    symlink(bench.path("outside/file"), bench.path("copy/dir/.hidden")).unwrap();
    symlink(bench.path("outside"), bench.path("copy/dir/empty")).unwrap();
    let output = bench.run(["cp", "-r", &bench.target("/"), "copy"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(errors.lines().count() == 1 && errors.contains("copy/dir/empty: "), "{errors}");
    assert_eq!(fs::read(bench.path("outside/file")).unwrap(), b"untouched");
    assert_eq!(fs::metadata(bench.path("outside")).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::read(bench.path("copy/dir/.hidden")).unwrap(), b"hidden");
}

/// A damaged file causes one line and a nonzero exit code. No part of its copy remains, and the other files are copied.
#[test]
fn a_damaged_file_does_not_end_the_copy() {
    let bench = Bench::new();
    bench.debugfs("set_inode_field /dir/large block[0] 0x1234");
    let output = bench.run(["cp", "-r", &bench.target("/"), "copy"]);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    let errors = text(&output.stderr);
    assert!(errors.lines().count() == 1 && errors.contains(":/dir/large: "), "{errors}");
    let mut expected = names(&bench.source());
    expected.remove(Path::new("dir/large"));
    assert_eq!(names(&bench.path("copy")), expected);
}

/// Only root can make device nodes, but every user can make FIFOs. If another user copies device nodes, a warning is printed, and all other
/// files are copied. After a failed copy, the files of an earlier copy still exist, and no part of the new copy remains.
#[test]
fn a_copy_that_fails_leaves_what_was_there() {
    let bench = Bench::empty();
    fs::create_dir(bench.path("tree")).unwrap();
    fs::write(bench.path("tree/file"), vec![0x22; 300_000]).unwrap();
    bench.succeed(["mkfs", "-q", "-b", "4K", "-d", "tree", "image", "16M"]);
    fs::create_dir(bench.path("out")).unwrap();
    fs::write(bench.path("out/file"), "old").unwrap();
    bench.succeed(["cp", "image:/file", "out/file"]);
    assert!(fs::read(bench.path("out/file")).unwrap() == vec![0x22; 300_000]);
    crate::support::succeed(
        tool("debugfs").args(["-w", "-R", "sif /file block[0] 0x1234"]).arg(bench.path("image")),
    );
    let output = bench.run(["cp", "image:/file", "out/file"]);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    assert!(fs::read(bench.path("out/file")).unwrap() == vec![0x22; 300_000]);
    assert_eq!(names(&bench.path("out")), BTreeSet::from([PathBuf::from("file")]));
}

#[test]
fn nodes_are_copied_as_far_as_the_user_may() {
    let bench = Bench::new();
    bench.debugfs("mknod node c 1 3");
    bench.debugfs("mknod pipe p");
    let root = rustix::process::geteuid().is_root();
    if root {
        bench.succeed(["cp", "-r", &bench.target("/"), "copy"]);
        let node = fs::symlink_metadata(bench.path("copy/node")).unwrap();
        assert!(node.file_type().is_char_device());
        assert_eq!(node.rdev(), rustix::fs::makedev(1, 3));
    }
    // Other users must have access to the directory of the test. By default, only the owner has access.
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(bench.dir.path(), open).unwrap();
    let program = bench.path("ironmap");
    // Another process copies the program. If this process copied it, a child process of another test could inherit the open descriptor. The
    // copy could then not be executed (ETXTBSY).
    assert!(Command::new("cp").arg(IRONMAP).arg(&program).status().unwrap().success());
    let mut command = Command::new(&program);
    command.current_dir(bench.dir.path()).args(["cp", "-r", &bench.target("/"), "mine"]);
    if root {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(
        errors.lines().count() == 1 && errors.contains("warning: ") && errors.contains(":/node:")
    );
    assert!(!bench.path("mine/node").exists());
    assert!(fs::symlink_metadata(bench.path("mine/pipe")).unwrap().file_type().is_fifo());
    // Set-id bits are kept only if the owner is kept.
    let large = fs::metadata(bench.path("mine/dir/large")).unwrap();
    assert_eq!(large.mode() & 0o7777, if root { 0o751 } else { 0o4751 });
    assert!(fs::read(bench.path("mine/dir/large")).unwrap() == pattern(3 << 20 | 77, 1));
}

/// A second copy replaces the files of the first copy, including special files. A regular file does not replace a special file, such as
/// /dev/null.
#[test]
fn only_special_files_replace_special_files() {
    let bench = Bench::new();
    let root = rustix::process::geteuid().is_root();
    bench.debugfs("mknod pipe p");
    if root {
        bench.debugfs("mknod node c 1 3");
    }
    bench.succeed(["cp", "-r", &bench.target("/"), "copy"]);
    bench.debugfs("set_inode_field /pipe mode 010612");
    if root {
        bench.debugfs("rm node");
        bench.debugfs("mknod node c 1 5");
    }
    bench.succeed(["cp", "-r", &bench.target("/"), "copy"]);
    let pipe = || fs::symlink_metadata(bench.path("copy/pipe")).unwrap();
    assert_eq!(pipe().mode(), 0o010_612);
    if root {
        let node = fs::symlink_metadata(bench.path("copy/node")).unwrap();
        assert_eq!(node.rdev(), rustix::fs::makedev(1, 5));
    }
    let output = bench.run(["cp", &bench.target("/small"), "copy/pipe"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("copy/pipe: the name exists"),
        "{}",
        text(&output.stderr)
    );
    assert!(pipe().file_type().is_fifo());
}

/// A directory that contains itself is visited only once, by `cp` and by `ls`.
#[test]
fn a_directory_below_itself_ends_the_walk() {
    let bench = Bench::new();
    bench.debugfs("ln /dir /dir/empty/up");
    for args in
        [&["cp", "-r", &bench.target("/dir"), "copy"][..], &["ls", "-R", &bench.target("/dir")]]
    {
        let output = bench.run(args);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{errors}");
        assert!(errors.lines().count() == 1 && errors.contains("/dir/empty/up: "), "{errors}");
    }
    assert!(bench.path("copy/large").exists());
}

/// Large files are written with direct writes, in pieces. debugfs then shows the content and the holes of the source, and no unwritten
/// extent. The end of the file is not aligned. A copy within the volume is tested too.
#[test]
fn a_large_file_keeps_its_holes_and_its_odd_end() {
    let bench = Bench::empty();
    fs::create_dir(bench.source()).unwrap();
    let source = bench.source().join("large");
    // Two ranges that are longer than a piece, and a short range between them. The end of the last range is not aligned.
    let ranges = [(0, 6 << 20), (7 << 20, 12 << 10), (12 << 20, (9 << 20) + 777)];
    let file = fs::File::create(&source).unwrap();
    for (seed, (pos, len)) in (1..).zip(ranges) {
        file.write_all_at(&pattern(len, seed), pos).unwrap();
    }
    let blocks: u64 = ranges.iter().map(|(_, len)| (*len as u64).div_ceil(4096) * 8).sum();
    for options in ["-b 4096", "-b 4096 -I 512 -O inline_data", "-b 1024"] {
        let mut mke2fs = tool("mke2fs");
        mke2fs.args(["-qF", "-t", "ext4"]).args(options.split(' ')).arg(bench.image()).arg("64M");
        crate::support::succeed(&mut mke2fs);
        bench.succeed(["cp", "source/large", &bench.target("/large")]);
        bench.succeed(["cp", &bench.target("/large"), &bench.target("/again")]);
        fsck(&bench.image());
        for name in ["large", "again"] {
            let dumped = bench.path("dumped");
            bench.ask(&format!("dump /{name} {}", dumped.display()));
            assert!(fs::read(&dumped).unwrap() == fs::read(&source).unwrap(), "{options}: {name}");
            let stat = bench.ask(&format!("stat /{name}"));
            if options.starts_with("-b 4096") {
                assert!(stat.contains(&format!("Blockcount: {blocks}")), "{options}: {stat}");
            }
            let extents = bench.ask(&format!("dump_extents /{name}"));
            assert!(!extents.contains("Uninit"), "{options}: {extents}");
        }
    }
}

/// If a large file does not fit, one error names the file. A new file is removed. In an existing file, the blocks that the copy has
/// allocated are freed.
#[test]
fn a_large_file_without_room_leaves_none_taken() {
    let bench = Bench::empty();
    fs::create_dir(bench.source()).unwrap();
    fs::write(bench.source().join("large"), pattern(40 << 20, 1)).unwrap();
    fs::write(bench.source().join("small"), pattern(5000, 2)).unwrap();
    crate::support::succeed(
        tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("24M"),
    );
    bench.succeed(["cp", "source/small", &bench.target("/there")]);
    bench.succeed(["truncate", "-s", "0", &bench.target("/there")]);
    let free =
        || bench.json(&["info", "--json", bench.image().to_str().unwrap()])["free_blocks"].clone();
    let before = free();
    assert!(before.is_u64(), "{before}");
    for name in ["/new", "/there"] {
        let output = bench.run(["cp", "source/large", &bench.target(name)]);
        assert_eq!(output.status.code(), Some(1));
        let errors = text(&output.stderr);
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(&bench.target(name)) && errors.contains("ENOSPC"), "{errors}");
        fsck(&bench.image());
        assert_eq!(free(), before, "{name}");
    }
    assert_eq!(bench.run(["stat", &bench.target("/new")]).status.code(), Some(1));
}

/// If standard error is a terminal, a copy shows the copied files and bytes, their totals, and the remaining time. This applies to files,
/// trees and the sources of mkfs. A pipe has no totals.
#[test]
fn a_copy_shows_its_progress_on_a_terminal() {
    require!([Need::Tool("script"), Need::Tool("tar")]);
    let bench = Bench::empty();
    fs::create_dir_all(bench.source().join("dir")).unwrap();
    fs::write(bench.source().join("large"), pattern(12 << 20, 1)).unwrap();
    for number in 0..99 {
        fs::write(bench.source().join(format!("dir/{number}")), pattern(1024, number)).unwrap();
    }
    fs::hard_link(bench.source().join("large"), bench.source().join("link")).unwrap();
    crate::support::succeed(
        tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("128M"),
    );
    let tree = "/101 files";
    for (command, shows) in [
        ("@ cp source/large image:/large", ["0/1 files", "/12.00 MiB"]),
        ("@ cp -a source image:/tree", [tree, "/12.10 MiB"]),
        ("@ cp -r source image:/copies", [tree, "/24.10 MiB"]),
        ("@ cp -r image:/tree out", [tree, "/12.10 MiB"]),
        ("@ mkfs -q -d source made 64M", [tree, "/12.10 MiB"]),
        ("@ mkfs -q -d source fitting", [tree, "/12.10 MiB"]),
    ] {
        // On a busy machine, a copy may end before its sources are counted. Therefore there are several tries.
        let mut shown = String::new();
        let has_totals = (0..20).any(|_| {
            // The destination of the previous try is removed, in the volume or on the host.
            let made = command.split(' ').rfind(|word| !word.ends_with('M')).unwrap();
            match made.strip_prefix("image:") {
                Some(name) => drop(bench.run(["rm", "-rf", &bench.target(name)])),
                None if bench.path(made).is_dir() => fs::remove_dir_all(bench.path(made)).unwrap(),
                None => drop(fs::remove_file(bench.path(made))),
            }
            shown = on_terminal(&bench, command);
            let totals = shows.iter().all(|text| shown.contains(text));
            totals && shown.contains("/s ") && shown.contains(" left")
        });
        assert!(has_totals, "{command}: {shown:?}");
    }
    for command in
        ["tar -C source -c . | @ mkfs -q -d - piped 64M", "cat source/large | @ cp - image:/piped"]
    {
        let shown = on_terminal(&bench, command);
        let known = shown.contains(" files, ") && shown.contains("B/s ");
        assert!(known && !shown.contains("left"), "{command}: {shown:?}");
    }
    let quiet = bench.run(["cp", "-r", "source/dir", &bench.target("/again")]);
    assert!(quiet.status.success() && quiet.stdout.is_empty() && quiet.stderr.is_empty());
    for image in ["image", "made", "fitting", "piped"] {
        fsck(&bench.path(image));
    }
}

/// The output of a shell command. Its standard error is a terminal of script(1). `@` is replaced by the program.
fn on_terminal(bench: &Bench, command: &str) -> String {
    let mut script = tool("script");
    script.args(["-qec", &command.replace('@', IRONMAP), "/dev/null"]).current_dir(bench.path(""));
    let shown = script.env("TERM", "xterm").stdin(Stdio::null()).output().unwrap();
    let shown_text = text(&shown.stdout);
    assert!(shown.status.success(), "{command}: {shown_text}");
    shown_text
}

/// A signal ends a copy out of a volume. The exit code is that of the signal, and the partial file is removed.
#[test]
fn an_interrupted_copy_leaves_nothing() {
    let bench = Bench::empty();
    fs::create_dir(bench.source()).unwrap();
    fs::write(bench.source().join("large"), pattern(64 << 20, 5)).unwrap();
    let mut mke2fs = tool("mke2fs");
    mke2fs.args(["-qF", "-t", "ext4", "-d"]).arg(bench.source()).arg(bench.image()).arg("128M");
    crate::support::succeed(&mut mke2fs);
    let out = bench.path("out");
    fs::create_dir(&out).unwrap();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        // The copy may end before the signal arrives, so the test retries.
        let ended = (0..50).find_map(|_| {
            let mut command = bench.hearing_command();
            command.args(["cp", &bench.target("/large"), "out/large"]);
            let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
            while fs::read_dir(&out).unwrap().next().is_none() {
                assert!(child.try_wait().unwrap().is_none(), "it has written nothing");
            }
            kill_process(Pid::from_child(&child), signal).unwrap();
            let output = child.wait_with_output().unwrap();
            let done = output.status.success();
            if done {
                fs::remove_file(out.join("large")).unwrap();
            }
            (!done).then_some(output)
        });
        let output = ended.expect("it is done before it can be interrupted");
        assert_eq!(
            (output.status.code(), &*text(&output.stderr)),
            (Some(code), "ironmap: interrupted\n")
        );
        assert_eq!(names(&out), BTreeSet::new());
    }
}

/// If the parent process ignores a signal, as nohup does, this signal does not end a copy.
#[test]
fn an_ignored_error_ends_no_copy() {
    let bench = Bench::empty();
    fs::create_dir(bench.source()).unwrap();
    let content = pattern(64 << 20, 5);
    fs::write(bench.source().join("large"), &content).unwrap();
    let mut mke2fs = tool("mke2fs");
    mke2fs.args(["-qF", "-t", "ext4", "-d"]).arg(bench.source()).arg(bench.image()).arg("128M");
    crate::support::succeed(&mut mke2fs);
    let out = bench.path("out");
    fs::create_dir(&out).unwrap();
    let mut command = Command::new("nohup");
    command.arg(IRONMAP).args(["cp", &bench.target("/large"), "out/large"]);
    command.current_dir(bench.path("")).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    while fs::read_dir(&out).unwrap().next().is_none() {
        assert!(child.try_wait().unwrap().is_none(), "it has written nothing");
    }
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(fs::read(out.join("large")).unwrap() == content);
}
