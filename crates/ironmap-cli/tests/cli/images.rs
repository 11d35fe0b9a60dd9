//! `ironmap mkfs -d` with tar archives. The volume then has the same files that GNU tar extracts to a mounted ext4.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use tar::{EntryType, Header};

use crate::common::image::Image;
use crate::common::mounted::Mounted;
use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, pattern, succeed, text, tool};
use crate::trees::{View, compare, space, view};

/// All files of a tree, except the files that every new file system has.
fn view_of(root: &Path) -> BTreeMap<PathBuf, View> {
    let mut views = view(root, i64::MAX);
    views.remove(Path::new("lost+found"));
    views
}

/// A mounted ext4 to which GNU tar has extracted the archives in order.
fn extracted(archives: &[PathBuf]) -> Mounted {
    let mounted = Mounted::ext4();
    for archive in archives {
        let mut tar = tool("tar");
        tar.args(["-xpf"]).arg(archive).args(["--xattrs", "--xattrs-include=*", "--numeric-owner"]);
        succeed(tar.arg("-C").arg(mounted.dir()));
    }
    mounted
}

/// Asserts that e2fsck finds no fault in a volume, and that the volume has the same files as a mounted tree.
pub(crate) fn same(image: &Image, expected: &Path) {
    image.check();
    let mount = image.mount("ro");
    let (expected, found) = (view_of(expected), view_of(mount.dir()));
    compare(&expected, &found);
}

/// A tree with each type of file, including the types that only root can make.
fn tree(bench: &Bench) -> PathBuf {
    let tree = bench.source();
    let long = "n".repeat(150);
    fs::create_dir_all(tree.join(format!("{long}/{long}"))).unwrap();
    fs::write(tree.join(format!("{long}/{long}/file")), "deep").unwrap();
    fs::hard_link(tree.join(format!("{long}/{long}/file")), tree.join("near")).unwrap();
    symlink(format!("{long}/{long}/file"), tree.join("far")).unwrap();
    let script = "mknod zero c 1 5; mknod disk b 259 1234; mkfifo -m 640 pipe
        chown 1000:1001 small; chown -h 70000:3000000 far; chmod 6755 near; chmod 1777 dir
        setfattr -n user.lines -v 'a
b' small; setfattr -n trusted.it -v x dir; setfattr -n user.a=b%3D%25%c -v x dir; setfacl -m user:7:r small; setfacl -d -m user:8:rwx dir
        touch -d '1960-01-02 03:04:05.678901234' zero; touch -hd '2033-01-02 03:04:05.5' far";
    succeed(tool("sh").args(["-ec", script]).current_dir(&tree));
    tree
}

fn pack(bench: &Bench, name: &str, options: &str) -> PathBuf {
    let archive = bench.path(name);
    let mut tar = tool("tar");
    tar.args(options.split_whitespace()).arg("-cf").arg(&archive).arg("-C").arg(bench.source());
    succeed(tar.arg("."));
    archive
}

/// mkfs makes a volume from an archive. The volume has the files that GNU tar extracts. Every format of GNU tar and every supported
/// compression is tested, as a file and as a stream.
#[test]
fn an_archive_makes_what_tar_extracts() {
    require!([Need::Root, Need::Tool("tar"), Need::Tool("zstd"), Need::Tool("setfacl")]);
    let bench = Bench::new();
    tree(&bench);
    // Files that the format ustar cannot store are omitted.
    let ustar = "--format=ustar --exclude=far --exclude=dangling --exclude=nnn*";
    let pax = "--format=pax --xattrs --xattrs-include=*";
    for (number, (options, stream)) in [
        (pax.to_owned(), false),
        (format!("{pax} --sparse -z"), true),
        (format!("{pax} --sparse --sparse-version=0.1 --zstd"), true),
        (format!("{pax} --sparse --sparse-version=0.0"), true),
        ("--format=gnu --sparse".to_owned(), true),
        ("--format=gnu --zstd".to_owned(), false),
        (format!("{ustar} --mtime=@1000000000"), true),
    ]
    .into_iter()
    .enumerate()
    {
        let archive = pack(&bench, &format!("{number}.tar"), &options);
        let expected = extracted(std::slice::from_ref(&archive));
        let image = Image::none();
        let mut mkfs = bench.command();
        mkfs.args(["mkfs", "-q", "-b", "4K", "-d"]);
        if stream {
            mkfs.arg("-").stdin(File::open(&archive).unwrap());
        } else {
            mkfs.arg(&archive);
        }
        succeed(mkfs.arg(image.path()).arg("64M"));
        same(&image, expected.dir());
        let mount = image.mount("ro");
        let views = view_of(expected.dir());
        // If an archive has no sparse members, it stores holes as zeros. The volume then has zeros instead of holes.
        if options.contains("sparse") {
            assert_eq!(space(mount.dir(), &views), space(expected.dir(), &views), "{options}");
        }
    }
}

/// A member of an archive, with its content.
fn member(archive: &mut Vec<u8>, kind: EntryType, name: &str, link: &str, content: &[u8]) {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o750);
    header.set_uid(3);
    header.set_gid(4);
    header.set_mtime(1_000_000_000);
    header.set_size(content.len() as u64);
    header.set_cksum();
    archive.extend_from_slice(header.as_bytes());
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

fn archive(members: &[(EntryType, &str, &str)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (kind, name, link) in members {
        let content = if *kind == EntryType::Regular { name.as_bytes() } else { b"" };
        member(&mut archive, *kind, name, link, content);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

/// Makes a volume of an archive on standard input.
fn make(bench: &Bench, image: &Path, bytes: &[u8]) -> Output {
    let mut mkfs = bench.command();
    mkfs.args(["mkfs", "-qF", "-b", "4K", "-d", "-"]).arg(image).arg("8M");
    mkfs.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = mkfs.spawn().unwrap();
    // A refused archive is not read to its end, so the write may fail.
    let _ = child.stdin.take().unwrap().write_all(bytes);
    child.wait_with_output().unwrap()
}

const FILE: EntryType = EntryType::Regular;
const DIR: EntryType = EntryType::Directory;
const LINK: EntryType = EntryType::Link;
const SYMLINK: EntryType = EntryType::Symlink;

/// If several members have the same name, the last member is kept. GNU tar does the same. Directories are merged, and get the times of
/// their last member.
#[test]
fn the_later_member_stays() {
    require!([Need::Root, Need::Tool("tar")]);
    let bench = Bench::empty();
    let bytes = archive(&[
        (DIR, "./", ""),
        (FILE, "a", ""),
        (LINK, "b", "a"),
        (FILE, "./a", ""),
        (DIR, "d", ""),
        (FILE, "d/one", ""),
        (SYMLINK, "l", "d"),
        (FILE, "l/two", ""),
        (DIR, "d/", ""),
        (SYMLINK, "x", "nowhere"),
        (FILE, "x", ""),
        (FILE, "y", ""),
        (DIR, "y", ""),
        (DIR, "z", ""),
        (FILE, "z", ""),
        (EntryType::Fifo, "b", ""),
    ]);
    let path = bench.path("a.tar");
    fs::write(&path, &bytes).unwrap();
    let expected = extracted(&[path]);
    let image = Image::none();
    let output = make(&bench, &image.path(), &bytes);
    assert!(output.status.success(), "{}", text(&output.stderr));
    same(&image, expected.dir());
}

/// In an archive, the name of a file and the target of a hard link cannot lead out of the volume.
#[test]
fn names_stay_inside_the_volume() {
    let bench = Bench::empty();
    let bytes = archive(&[
        (FILE, "../../up", ""),
        (FILE, "/absolute/./name", ""),
        (SYMLINK, "out", "../../.."),
        (FILE, "out/through", ""),
        (SYMLINK, "tmp", "/absolute"),
        (FILE, "tmp/followed", ""),
        (FILE, "made/../not-made", ""),
        (LINK, "again", "../absolute/name"),
    ]);
    let output = make(&bench, &bench.image(), &bytes);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let listed = text(&bench.succeed(["ls", "-R", &bench.target("/")]));
    for name in ["up", "through", "not-made", "again"] {
        assert!(listed.lines().any(|line| line == name), "{name}: {listed}");
    }
    let found = text(&bench.succeed(["cat", &bench.target("/absolute/followed")]));
    assert_eq!(found, "tmp/followed");
    let link = bench.json(&["stat", "--json", &bench.target("/again")]);
    assert_eq!(link["links"], 2);
}

/// A damaged archive causes one clear line and no panic, and the volume is sound.
#[test]
fn a_damaged_archive_is_refused() {
    let bench = Bench::empty();
    let mut huge = Vec::new();
    member(&mut huge, FILE, "huge", "", b"");
    let header = |bytes: &mut [u8], change: &dyn Fn(&mut Header)| {
        let mut header = Header::new_old();
        header.as_mut_bytes().copy_from_slice(&bytes[..512]);
        change(&mut header);
        header.set_cksum();
        bytes[..512].copy_from_slice(header.as_bytes());
    };
    header(&mut huge, &|header| header.set_size(1 << 60));
    let mut overflow = huge.clone();
    header(&mut overflow, &|header| header.set_size(u64::MAX));
    let mut long = huge.clone();
    header(&mut long, &|header| header.set_entry_type(EntryType::GNULongName));
    let mut odd = huge.clone();
    header(&mut odd, &|header| header.set_entry_type(EntryType::new(b'Q')));
    let mut pax = Vec::new();
    member(&mut pax, EntryType::XHeader, "pax", "", b"99 size=1\n");
    let whole = archive(&[(DIR, "d", ""), (FILE, "d/file", "")]);
    let mut flipped = whole.clone();
    flipped[512 + 3] ^= 1;
    let of = archive;
    let cases: [(&str, Vec<u8>, &str); 16] = [
        ("nothing", Vec::new(), "the archive is truncated: the end mark is missing at byte 0"),
        ("text", vec![b'x'; 2000], "is not a tar archive"),
        ("xz", b"\xFD7zXZ\0 and so on".to_vec(), "compressed with xz"),
        ("gzip", b"\x1F\x8B and so on".to_vec(), "standard input: "),
        ("huge", huge, "huge: "),
        ("overflow", overflow, "a size is too large"),
        ("long name", long, "is too long"),
        ("type", odd, "the unknown type 'Q'"),
        ("pax", pax, "a record of a pax header has a wrong length"),
        ("checksum", flipped, "at byte 512: a header has a wrong checksum"),
        (
            "cut content",
            whole[..1030].to_vec(),
            "the archive is truncated: the end mark is missing at byte 1030",
        ),
        (
            "no end mark",
            whole[..1536].to_vec(),
            "the archive is truncated: the end mark is missing at byte 1536",
        ),
        ("loop", of(&[(LINK, "a", "b"), (LINK, "b", "a")]), "a: is a hard link to a missing file"),
        ("itself", of(&[(LINK, "a", "a")]), "a: is a hard link to a missing file"),
        ("directory", of(&[(DIR, "d", ""), (LINK, "a", "d")]), "a hard link to a directory"),
        ("file above", of(&[(FILE, "a", ""), (FILE, "a/b", "")]), "(ENOTDIR)"),
    ];
    for (name, bytes, says) in cases {
        let _ = fs::remove_file(bench.image());
        let output = make(&bench, &bench.image(), &bytes);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains(says) && said.lines().count() == 1, "{name}: {said}");
        if bench.image().exists() {
            succeed(tool("e2fsck").arg("-fn").arg(bench.image()));
        }
    }
}

/// Any bytes of an archive are changed. The volume is sound, and there is at most one line with an error.
#[test]
fn damaged_archives_make_sound_volumes() {
    require!([Need::Tool("tar")]);
    let bench = Bench::new();
    let options = "--format=pax --xattrs --sparse --exclude=large";
    let whole = fs::read(pack(&bench, "a.tar", options)).unwrap();
    for seed in 0..40 {
        let mut bytes = whole.clone();
        for pair in pattern(24, seed).chunks(4) {
            let at = u32::from_le_bytes(pair.try_into().unwrap()) as usize;
            // Headers are changed more often than content.
            let at = if at.is_multiple_of(3) {
                at % bytes.len()
            } else {
                at / 512 % 30 * 512 + at % 512
            };
            bytes[at] ^= pair[3] | 1;
        }
        let output = make(&bench, &bench.path("made"), &bytes);
        let said = text(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{seed}: {said}");
        assert!(!said.contains("panicked"), "{seed}: {said}");
        let errors = said.lines().filter(|line| !line.contains("warning: ")).count();
        assert_eq!(errors, usize::from(!output.status.success()), "{seed}: {said}");
        succeed(tool("e2fsck").arg("-fn").arg(bench.path("made")));
    }
}

/// If an archive does not fit, the message names the first file without space. It also names a sufficient size for the complete archive.
#[test]
fn an_archive_that_does_not_fit_is_one_line() {
    let bench = Bench::empty();
    let mut bytes = Vec::new();
    for number in 0..5 {
        member(&mut bytes, FILE, &format!("file-{number}"), "", &pattern(3 << 20, number));
    }
    bytes.resize(bytes.len() + 1024, 0);
    fs::write(bench.path("a.tar"), &bytes).unwrap();
    for stream in [true, false] {
        let output = if stream {
            make(&bench, &bench.image(), &bytes)
        } else {
            bench.run(["mkfs", "-q", "-d", "a.tar", "image", "8M"])
        };
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with("ironmap: ") && said.lines().count() == 1, "{said}");
        assert!(said.contains("/file-") && said.contains("(ENOSPC): the volume is too"), "{said}");
        let enough = said.split("a size of ").last().unwrap().split(' ').next().unwrap().to_owned();
        fs::remove_file(bench.image()).unwrap();
        bench.succeed(["mkfs", "-q", "-d", "a.tar", "image", &enough]);
        fs::remove_file(bench.image()).unwrap();
    }
}

/// Whiteouts hide files of lower layers, but not files of their own layer. Without --oci, whiteouts are ordinary files.
#[test]
fn layers_hide_what_is_below() {
    let bench = Bench::empty();
    let layer = |name: &str, members: &[(EntryType, &str, &str)]| {
        fs::write(bench.path(name), archive(members)).unwrap();
    };
    layer(
        "1",
        &[
            (DIR, "a", ""),
            (FILE, "a/gone", ""),
            (FILE, "a/kept", ""),
            (FILE, "a/replaced", ""),
            (DIR, "tree", ""),
            (DIR, "tree/below", ""),
            (FILE, "tree/below/file", ""),
            (DIR, "opaque", ""),
            (FILE, "opaque/old", ""),
            (DIR, "opaque/dir", ""),
            (FILE, "opaque/dir/old", ""),
            (FILE, "becomes", ""),
            (SYMLINK, "lib", "a"),
        ],
    );
    layer(
        "2",
        &[
            (FILE, "a/.wh.gone", ""),
            (FILE, "a/replaced", ""),
            (FILE, "a/.wh.replaced", ""),
            (FILE, ".wh.tree", ""),
            (FILE, "opaque/new", ""),
            (FILE, "opaque/dir/new", ""),
            (FILE, "opaque/.wh..wh..opq", ""),
            (FILE, ".wh..wh.plnk", ""),
            (FILE, "nowhere/.wh.nothing", ""),
            (DIR, "becomes", ""),
            (FILE, "lib/through", ""),
        ],
    );
    bench.succeed(["mkfs", "-q", "--oci", "-d", "1", "-d", "2", "image", "8M"]);
    succeed(tool("e2fsck").arg("-fn").arg(bench.image()));
    bench.succeed(["cp", "-a", &bench.target("/"), "out"]);
    let mut found: Vec<_> = view(&bench.path("out"), 0).into_keys().collect();
    found.sort();
    let expected = "|a|a/kept|a/replaced|a/through|becomes|lib|lost+found|opaque|opaque/dir|opaque/dir/new|opaque/new";
    assert_eq!(found, expected.split('|').map(PathBuf::from).collect::<Vec<_>>());
    // A layer contains a file of a directory, but not the directory itself. The directory keeps its time.
    let dir = bench.json(&["stat", "--json", &bench.target("/a")]);
    assert_eq!(dir["modified"], "2001-09-09T01:46:40.000000000Z");
    bench.succeed(["mkfs", "-q", "-d", "1", "-d", "2", "plain", "8M"]);
    assert_eq!(text(&bench.succeed(["cat", "plain:/a/.wh.gone"])), "a/.wh.gone");
    layer("3", &[(FILE, "a/.wh...", "")]);
    let output = bench.run(["mkfs", "-q", "--oci", "-d", "3", "wrong", "8M"]);
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("names no file"), "{said}");
}

/// An image that is made without a size is large enough for its content. With --shrink, the image is only slightly larger than its content.
#[test]
fn an_image_is_as_large_as_its_content_needs() {
    let bench = Bench::empty();
    fs::create_dir_all(bench.path("tree/dir")).unwrap();
    for number in 0..2000 {
        let name = bench.path(&format!("tree/dir/{number:040}"));
        fs::write(name, pattern(number as usize * 7, number)).unwrap();
    }
    fs::write(bench.path("tree/large"), pattern(20 << 20, 1)).unwrap();
    let mut tar = tool("tar");
    succeed(tar.arg("-cf").arg(bench.path("t.tar")).arg("-C").arg(bench.path("tree")).arg("."));
    let used = (20 << 20) + (0..2000_u64).map(|n| (n * 7).next_multiple_of(4096)).sum::<u64>();
    for (number, (source, options)) in [
        ("tree", "-q"),
        ("tree", "--shrink -q"),
        ("t.tar", "--shrink -O ^has_journal"),
        ("-", "--shrink -b 1K"),
        ("-", "-q"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("image-{number}");
        let mut mkfs = bench.command();
        mkfs.arg("mkfs").args(options.split_whitespace()).args(["-d", source, &name]);
        succeed(mkfs.stdin(File::open(bench.path("t.tar")).unwrap()));
        succeed(tool("e2fsck").arg("-fn").arg(bench.path(&name)));
        bench.succeed(["cp", "-a", &format!("{name}:/dir"), &format!("out-{number}")]);
        let mut diff = tool("diff");
        diff.arg("-r").arg(bench.path("tree/dir")).arg(bench.path(&format!("out-{number}")));
        succeed(&mut diff);
        let len = fs::metadata(bench.path(&name)).unwrap().len();
        assert!(len >= used, "{options}: {len} of {used}");
        if options.contains("^has_journal") {
            assert!(len < used + used / 10, "{options}: {len} for {used}");
        }
    }
    // A failed mkfs leaves no image file.
    let mut mkfs = bench.command();
    let output = mkfs.args(["mkfs", "-d", "-", "new"]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.code() == Some(1) && !bench.path("new").exists());
    let output = bench.run(["mkfs", "--shrink", "-d", "tree", "image-0"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

/// The kernel shows each file with the owner that an option or a map assigns. It also shows the files of a device table.
#[test]
fn owners_and_devices_are_what_was_asked_for() {
    require!([Need::Root]);
    let bench = Bench::empty();
    fs::create_dir_all(bench.path("tree/bin")).unwrap();
    fs::write(bench.path("tree/bin/su"), "su").unwrap();
    std::os::unix::fs::chown(bench.path("tree/bin/su"), Some(1000), Some(1001)).unwrap();
    std::os::unix::fs::chown(bench.path("tree/bin"), Some(7), Some(100)).unwrap();
    fs::write(bench.path("map"), "# from to\n1000:1001 0:50\n7: 70000:\n").unwrap();
    let table = "/dev d 755 0 0 - - - - -\n/dev/tty c 620 0 5 4 64 0 1 3 # three\n\
        /dev/sda b 660 0 6 8 0 - - -\n/run/initctl p 600 1 2\n/bin/su f 4755 3 4 - - - - -\n";
    fs::write(bench.path("table"), table).unwrap();
    let image = Image::none();
    let path = image.path();
    let options = ["mkfs", "-q", "--device-table", "table", "--owner-map", "map", "-d", "tree"];
    bench.succeed(options.iter().map(std::ffi::OsStr::new).chain([path.as_os_str()]));
    image.check();
    let mount = image.mount("ro");
    let expected = [
        ("bin", 0o040_755, (70000, 100), 0),
        ("bin/su", 0o104_755, (3, 4), 0),
        ("dev", 0o040_755, (0, 0), 0),
        ("dev/tty0", 0o020_620, (0, 5), rustix::fs::makedev(4, 64)),
        ("dev/tty2", 0o020_620, (0, 5), rustix::fs::makedev(4, 66)),
        ("dev/sda", 0o060_660, (0, 6), rustix::fs::makedev(8, 0)),
        ("run/initctl", 0o010_600, (1, 2), 0),
    ];
    for (name, mode, owner, device) in expected {
        let stat = fs::symlink_metadata(mount.dir().join(name)).unwrap();
        let found = (stat.mode(), (stat.uid(), stat.gid()), stat.rdev());
        assert_eq!(found, (mode, owner, device), "{name}");
    }
    assert!(!mount.dir().join("dev/tty3").exists());
    bench.succeed(["mkfs", "-q", "--owner", "5:6", "-d", "tree", "image"]);
    let stat = bench.json(&["stat", "--json", &bench.target("/bin/su")]);
    assert_eq!((&stat["uid"], &stat["gid"]), (&5.into(), &6.into()));
    for (name, content) in [("--owner-map", "1:2"), ("--device-table", "/dev x 1 2 3")] {
        fs::write(bench.path("wrong"), content).unwrap();
        let output = bench.run(["mkfs", name, "wrong", "-d", "tree", "new"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("wrong: line 1 ") && said.lines().count() == 1, "{said}");
        assert!(!bench.path("new").exists());
    }
}

/// The same archive gives an image with the same bytes. The same tree also gives the same bytes, even if its directories are read in
/// another order.
#[test]
fn the_same_sources_make_the_same_bytes() {
    let bench = Bench::empty();
    for (tree, reversed) in [("a", false), ("b", true)] {
        fs::create_dir(bench.path(tree)).unwrap();
        let mut numbers: Vec<u64> = (0..300).collect();
        if reversed {
            numbers.reverse();
        }
        for number in numbers {
            fs::write(bench.path(&format!("{tree}/{number}")), pattern(5000, number)).unwrap();
        }
    }
    let mut tar = tool("tar");
    succeed(
        tar.args(["--sort=name", "-cf"])
            .arg(bench.path("t.tar"))
            .arg("-C")
            .args([bench.path("a").as_os_str(), std::ffi::OsStr::new(".")]),
    );
    let make = |source: &str, name: &str| {
        let mut mkfs = bench.command();
        mkfs.env("SOURCE_DATE_EPOCH", "1000000000").args(["mkfs", "-q", "-d", source, name]);
        succeed(&mut mkfs);
        fs::read(bench.path(name)).unwrap()
    };
    assert!(make("t.tar", "one") == make("t.tar", "two"));
    assert!(make("a", "three") == make("b", "four"));
}
