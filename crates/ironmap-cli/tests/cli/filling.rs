//! `mkfs -d`: the sources of a volume, and files that a failure must not change.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tar::{EntryType, Header};

use crate::common::loop_device::LoopDevice;
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, succeed, text, tool};

/// Appends a member without content.
fn member(archive: &mut Vec<u8>, kind: EntryType, name: &str, link: &str, device: (u32, u32)) {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_000_000_000);
    header.set_size(0);
    header.set_device_major(device.0).unwrap();
    header.set_device_minor(device.1).unwrap();
    header.set_cksum();
    archive.extend_from_slice(header.as_bytes());
}

fn archive(bench: &Bench, name: &str, members: &[(EntryType, &str, &str, (u32, u32))]) {
    let mut bytes = Vec::new();
    for (kind, name, link, device) in members {
        member(&mut bytes, *kind, name, link, *device);
    }
    bytes.resize(bytes.len() + 1024, 0);
    fs::write(bench.path(name), bytes).unwrap();
}

/// Asserts that a command ended with this exit code, and printed one line that contains `says`.
fn refused(output: &Output, code: i32, says: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.lines().count() == 1 && said.contains(says), "{said}");
}

/// Asserts that e2fsck finds no fault in an image, and returns the names in one of its directories.
fn names(bench: &Bench, image: &str, dir: &str) -> Vec<String> {
    succeed(tool("e2fsck").arg("-fn").arg(bench.path(image)));
    let request = format!("ls -p {dir}");
    let said = succeed(tool("debugfs").args(["-R", &request]).arg(bench.path(image))).stdout;
    let said = text(&said);
    let found = said.lines().filter_map(|line| line.split('/').nth(5));
    let mut found: Vec<_> = found
        .filter(|name| !matches!(*name, "." | ".." | "lost+found"))
        .map(String::from)
        .collect();
    found.sort();
    found
}

/// Starts mkfs, which waits for an archive on its standard input. Returns when mkfs has created the image under a temporary name.
fn begin(bench: &Bench, image: &str) -> Child {
    let mut mkfs = bench.hearing_command();
    mkfs.args(["mkfs", "-q", "-d", "-", image]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let child = mkfs.spawn().unwrap();
    let is_temporary = |name: &OsStr| name.as_encoded_bytes().starts_with(b".ironmap-");
    let is_created = || {
        let mut entries = fs::read_dir(bench.dir.path()).unwrap();
        entries.any(|entry| is_temporary(&entry.unwrap().file_name()))
    };
    let begin = Instant::now();
    while !is_created() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{image}");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

/// While a source is read, another program creates an image with the same name. That image is not changed.
#[test]
fn an_image_that_is_made_meanwhile_is_not_changed() {
    let bench = Bench::empty();
    archive(&bench, "a.tar", &[(EntryType::Directory, "dir", "", (0, 0))]);
    let mut child = begin(&bench, "new");
    fs::write(bench.path("other"), "theirs").unwrap();
    fs::rename(bench.path("other"), bench.path("new")).unwrap();
    child.stdin.take().unwrap().write_all(&fs::read(bench.path("a.tar")).unwrap()).unwrap();
    refused(&child.wait_with_output().unwrap(), 1, "new: another program has replaced the image");
    assert_eq!(fs::read(bench.path("new")).unwrap(), b"theirs");
}

/// After a signal or a failure, an image whose size depends on the sources is removed. A symbolic link to the image is kept.
#[test]
fn an_interrupted_image_is_removed() {
    let bench = Bench::empty();
    symlink("real", bench.path("link")).unwrap();
    for image in ["new", "link"] {
        let mut child = begin(&bench, image);
        let mut input = child.stdin.take().unwrap();
        input.write_all(&pattern(1000, 1)).unwrap();
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        refused(&child.wait_with_output().unwrap(), 130, "ironmap: interrupted");
        drop(input);
        let mut child = begin(&bench, image);
        child.stdin.take().unwrap().write_all(&pattern(1000, 1)).unwrap();
        refused(&child.wait_with_output().unwrap(), 1, "is not a tar archive");
    }
    let mut left: Vec<_> =
        fs::read_dir(bench.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["link"]);
    archive(&bench, "a.tar", &[(EntryType::Directory, "dir", "", (0, 0))]);
    bench.succeed(["mkfs", "-q", "-d", "a.tar", "link"]);
    assert_eq!(names(&bench, "real", "/"), ["dir"]);
}

/// An image cannot be its own source, by any name. If a source tree contains the image, the copy omits the image. GNU tar omits its own
/// archive too.
#[test]
fn an_image_is_no_source_of_its_own() {
    let bench = Bench::empty();
    fs::create_dir(bench.path("tree")).unwrap();
    fs::write(bench.path("tree/file"), pattern(100_000, 3)).unwrap();
    let mut tar = tool("tar");
    succeed(tar.arg("-cf").arg(bench.path("x")).arg("-C").arg(bench.path("tree")).arg("."));
    fs::hard_link(bench.path("x"), bench.path("again")).unwrap();
    let before = fs::read(bench.path("x")).unwrap();
    let own = "the file is the volume that is being made, so it cannot be a source";
    for line in [
        "-d x x",
        "-d x x 8M",
        "-d again x",
        "-d tree -d x -F again 8M",
        "-d - x",
        "-d tree --owner-map x x",
        "-d tree --device-table again x 8M",
    ] {
        let mut mkfs = bench.command();
        mkfs.arg("mkfs").args(line.split(' ')).stdin(File::open(bench.path("x")).unwrap());
        refused(&mkfs.output().unwrap(), 2, own);
        assert!(fs::read(bench.path("x")).unwrap() == before, "{line}");
    }
    for (image, size) in [("tree/a.img", None), ("tree/b.img", Some("8M"))] {
        let args = ["mkfs", "-q", "-d", "tree", image].into_iter().chain(size);
        let output = bench.run(args);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let note = format!(
            "note: {image}: the file is the volume that is being written, so it is not copied"
        );
        assert!(text(&output.stderr).contains(&note), "{}", text(&output.stderr));
        assert_eq!(names(&bench, image, "/"), ["file"]);
        fs::remove_file(bench.path(image)).unwrap();
    }
}

/// The volume is a loop device for an image. The image cannot be a source of this volume.
#[test]
fn an_image_is_no_source_of_its_loop_device() {
    require!([Need::Root, Need::Tool("losetup")]);
    let bench = Bench::empty();
    archive(&bench, "x", &[(EntryType::Directory, "dir", "", (0, 0))]);
    File::options().write(true).open(bench.path("x")).unwrap().set_len(8 << 20).unwrap();
    let before = fs::read(bench.path("x")).unwrap();
    let device = LoopDevice::with(&[], bench.path("x"));
    let own = "the file is the volume that is being made, so it cannot be a source";
    refused(&bench.run(["mkfs", "-F", "-d", "x", device.node()]), 2, own);
    assert!(fs::read(bench.path("x")).unwrap() == before);
}

/// A pipe that is a source is read only once, whether or not the size of the image is given.
#[test]
fn pipes_are_sources() {
    require!([Need::Tool("bash"), Need::Tool("tar"), Need::Tool("mkfifo")]);
    let bench = Bench::empty();
    fs::create_dir_all(bench.path("tree/dir")).unwrap();
    fs::write(bench.path("tree/dir/file"), pattern(300_000, 3)).unwrap();
    succeed(tool("mkfifo").arg(bench.path("fifo")));
    for (number, line) in [
        "(tar -cf fifo -C tree . &) ; % -d fifo @",
        "(tar -cf fifo -C tree . &) ; % -d fifo @ 8M",
        "(sleep 0.3; tar -czf fifo -C tree . &) & % -d fifo @",
        "% -d <(tar -cf - -C tree .) @",
        "% -d <(tar -cf - -C tree .) -d <(tar -czf - -C tree .) @",
        "% -d /dev/fd/7 @ 7< <(tar -cf - -C tree .)",
        "tar -cf - -C tree . | % -d /dev/stdin @",
    ]
    .into_iter()
    .enumerate()
    {
        let image = format!("image-{number}");
        let mkfs = format!("{} mkfs -q", crate::support::IRONMAP);
        let line = line.replace('%', &mkfs).replace('@', &image);
        let mut bash = tool("timeout");
        bash.args(["60", "bash", "-c", &line]).current_dir(bench.dir.path());
        let output = bash.output().unwrap();
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        assert_eq!(names(&bench, &image, "/dir"), ["file"], "{line}");
    }
}

/// A line of a device table changes the owner and mode of an existing file with the same type and device number. A line with another type
/// or number does not replace an existing file.
#[test]
fn a_device_table_replaces_nothing() {
    let bench = Bench::empty();
    fs::create_dir_all(bench.path("tree/etc/deep")).unwrap();
    fs::write(bench.path("tree/etc/deep/file"), "kept").unwrap();
    symlink("etc", bench.path("tree/link")).unwrap();
    symlink("nowhere", bench.path("tree/lost")).unwrap();
    archive(&bench, "t.tar", &[(EntryType::Char, "zero", "", (1, 5))]);
    let make = |table: &str| {
        fs::write(bench.path("table"), table).unwrap();
        let _ = fs::remove_file(bench.image());
        bench.run("mkfs -q --device-table table -d tree -d t.tar image 8M".split(' '))
    };
    for wrong in [
        "/etc p 644 0 0",
        "/etc c 644 0 0 1 5",
        "/etc f 644 0 0",
        "/etc/deep/file d 755 0 0",
        "/etc/deep/file s 755 0 0",
        "/link b 600 0 0 8 0",
        "/zero c 600 0 0 1 3",
        "/zero b 600 0 0 1 5",
        "/ p 600 0 0",
    ] {
        refused(
            &make(wrong),
            1,
            "the file exists, but its type or device number differs from the device table",
        );
        assert_eq!(names(&bench, "image", "/"), ["etc", "link", "lost", "zero"], "{wrong}");
        assert_eq!(bench.ask("cat /etc/deep/file"), "kept", "{wrong}");
    }
    refused(&make("/lost p 600 0 0"), 1, "is a symbolic link to a missing file");
    refused(&make("/missing f 600 0 0"), 1, "(ENOENT)");
    let output = make("/etc d 700 1 2\n/zero c 600 3 4 1 5\n/new p 640 5 6\n/new p 600 7 8\n");
    assert!(output.status.success(), "{}", text(&output.stderr));
    for (name, says) in [
        ("/etc", "Mode:  0700"),
        ("/etc", "User:     1   Group:     2"),
        ("/zero", "Mode:  0600"),
        ("/zero", "User:     3   Group:     4"),
        ("/new", "Type: FIFO    Mode:  0600"),
    ] {
        let stat = bench.ask(&format!("stat {name}"));
        assert!(stat.contains(says), "{says}: {stat}");
    }
    assert_eq!(bench.ask("cat /etc/deep/file"), "kept");
}

/// Device numbers that Linux does not support are errors. No device with other numbers is made.
#[test]
fn device_numbers_that_are_too_large_are_refused() {
    let bench = Bench::empty();
    for (number, device) in [(4096, 0), (0, 1 << 20), (8, 0o7_777_777)].into_iter().enumerate() {
        let image = format!("image-{number}");
        archive(&bench, "a.tar", &[(EntryType::Block, "dev", "", device)]);
        let says = format!("dev has an invalid device number, {}:{}", device.0, device.1);
        refused(&bench.run(["mkfs", "-d", "a.tar", &image]), 1, &says);
        fs::write(bench.path("table"), format!("/dev b 600 0 0 {} {}", device.0, device.1))
            .unwrap();
        let table = bench.run(["mkfs", "--device-table", "table", &image, "8M"]);
        refused(&table, 2, "table: line 1 ");
        assert!(!bench.path(&image).exists());
    }
    archive(&bench, "a.tar", &[(EntryType::Block, "dev", "", (4095, (1 << 20) - 1))]);
    bench.succeed(["mkfs", "-q", "-d", "a.tar", "image"]);
    let stat = bench.ask("stat dev");
    assert!(stat.contains("4095:1048575"), "{stat}");
}

/// The root of a volume is a directory. A member with the name of the root and another type does not replace it.
#[test]
fn a_root_that_is_no_directory_is_refused() {
    let bench = Bench::empty();
    fs::create_dir_all(bench.path("tree/dir")).unwrap();
    fs::write(bench.path("tree/dir/file"), "kept").unwrap();
    for (number, kind) in
        [EntryType::Regular, EntryType::Symlink, EntryType::Fifo, EntryType::Link, EntryType::Char]
            .into_iter()
            .enumerate()
    {
        for (name, link) in [(".", "dir/file"), ("a/..", "x")] {
            archive(&bench, "a.tar", &[(kind, name, link, (1, 3))]);
            let image = format!("{number}{}", name.len());
            let output = bench.run(["mkfs", "-q", "-d", "tree", "-d", "a.tar", &image, "8M"]);
            refused(&output, 1, &format!("{name} is the root, but not a directory"));
            assert_eq!(names(&bench, &image, "/dir"), ["file"]);
        }
    }
}

/// A symbolic link whose target contains a NUL is refused. Linux does not support such a link, and e2fsck reports it as damaged.
#[test]
fn a_link_with_a_nul_is_refused() {
    let bench = Bench::empty();
    let record = b"20 linkpath=a\0b\0c\0d\n";
    assert_eq!(record.len(), 20);
    let mut bytes = Vec::new();
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::XHeader);
    header.set_size(record.len() as u64);
    header.set_cksum();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(record);
    bytes.resize(1024, 0);
    member(&mut bytes, EntryType::Symlink, "link", "", (0, 0));
    bytes.resize(bytes.len() + 1024, 0);
    fs::write(bench.path("a.tar"), bytes).unwrap();
    let output = bench.run(["mkfs", "-q", "-d", "a.tar", "image", "8M"]);
    refused(&output, 1, "the target of the symbolic link link contains a NUL");
    assert!(names(&bench, "image", "/").is_empty());
}

/// An image is only a little larger than its content needs. The tests use small trees, and clusters of many blocks.
#[test]
fn small_images_are_made() {
    let bench = Bench::empty();
    fs::create_dir(bench.path("tiny")).unwrap();
    fs::write(bench.path("tiny/a"), "hi\n").unwrap();
    fs::create_dir(bench.path("many")).unwrap();
    for number in 0..400 {
        fs::write(bench.path(&format!("many/{number}")), [7]).unwrap();
    }
    for (options, tree, most) in [
        ("--shrink", "tiny", 512 << 10),
        ("--shrink -b 1K", "tiny", 512 << 10),
        ("--shrink -O ^has_journal", "tiny", 512 << 10),
        ("--shrink", "many", 3 << 20),
        ("--shrink -O bigalloc", "many", 400 * (64 << 10) + (12 << 20)),
        ("-O bigalloc", "many", 400 * (64 << 10) + (32 << 20)),
        ("--shrink -O bigalloc -C 32K", "many", 400 * (32 << 10) + (12 << 20)),
    ] {
        let _ = fs::remove_file(bench.image());
        bench.succeed(format!("mkfs -q {options} -d {tree} image").split(' '));
        let count = fs::read_dir(bench.path(tree)).unwrap().count();
        assert_eq!(names(&bench, "image", "/").len(), count, "{options}");
        let len = fs::metadata(bench.image()).unwrap().len();
        assert!(len <= most, "{options} {tree}: {len}");
    }
}

/// No part of a file is copied if the file exceeds the maximum size of the format.
#[test]
fn a_file_that_is_too_large_leaves_nothing() {
    let bench = Bench::with(&["-t", "ext4", "-b", "1024"]);
    fs::create_dir(bench.path("tree")).unwrap();
    let huge = File::create(bench.path("tree/huge")).unwrap();
    huge.set_len(5 << 40).unwrap();
    fs::write(bench.path("tree/small"), "small").unwrap();
    let copied = bench.run(["cp", "-a", "tree/huge", &bench.target("/huge")]);
    refused(&copied, 1, "/huge: ");
    assert!(!names(&bench, "image", "/").contains(&"huge".to_owned()));
    refused(&bench.run("mkfs -q -b 1K -d tree new 8M".split(' ')), 1, "/huge: ");
    assert_eq!(names(&bench, "new", "/"), ["small"]);
}

/// A layer can give a second name to a file of an earlier layer, and hide the old name. In this case, only the old name is removed. All
/// names from the layer itself are kept.
#[test]
fn a_layer_hides_the_old_name_of_a_file() {
    let bench = Bench::empty();
    let none = (0, 0);
    archive(
        &bench,
        "1",
        &[
            (EntryType::Regular, "a", "", none),
            (EntryType::Regular, "c", "", none),
            (EntryType::Link, "d", "c", none),
        ],
    );
    archive(
        &bench,
        "2",
        &[
            (EntryType::Link, "b", "a", none),
            (EntryType::Regular, ".wh.a", "", none),
            (EntryType::Link, "d", "c", none),
            (EntryType::Regular, ".wh.c", "", none),
            (EntryType::Regular, ".wh.d", "", none),
        ],
    );
    bench.succeed("mkfs -q --oci -d 1 -d 2 image 8M".split(' '));
    assert_eq!(names(&bench, "image", "/"), ["b", "d"]);
}

/// Zeros after the data of a gzip file are accepted. gzip(1) also accepts them.
#[test]
fn zeros_past_gzip_are_ignored() {
    require!([Need::Tool("gzip")]);
    let bench = Bench::empty();
    archive(&bench, "a.tar", &[(EntryType::Directory, "dir", "", (0, 0))]);
    succeed(tool("gzip").arg(bench.path("a.tar")));
    let mut file = File::options().append(true).open(bench.path("a.tar.gz")).unwrap();
    file.write_all(&[0; 10_000]).unwrap();
    succeed(tool("gzip").arg("-t").arg(bench.path("a.tar.gz")));
    bench.succeed(["mkfs", "-q", "-d", "a.tar.gz", "image"]);
    assert_eq!(names(&bench, "image", "/"), ["dir"]);
    file.write_all(&[1]).unwrap();
    refused(&bench.run(["mkfs", "-q", "-d", "a.tar.gz", "other"]), 1, "gzip: trailing bytes");
    assert!(fs::metadata(bench.path("a.tar.gz")).unwrap().size() > 10_000);
}
