//! The same tree makes the same image on every host. The image does not depend on:
//!
//! - the order in which names, attributes and access control lists were made;
//! - the smallest hole that the file system can store;
//! - the user;
//! - the locale.

use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt, chown, symlink};
use std::path::Path;

use rustix::fs::{Mode, XattrFlags, mknodat, setxattr};

use crate::common::skip::Need;
use crate::require;
use crate::support::{Bench, IRONMAP, pattern, succeed, text, tool};

const ACCESS: &str = "system.posix_acl_access";

/// The order in which the host stores names, attributes and other lists that have no defined order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Forwards,
    Backwards,
}

impl Order {
    fn of<T>(self, items: impl DoubleEndedIterator<Item = T>, mut each: impl FnMut(T)) {
        match self {
            Self::Forwards => items.for_each(each),
            Self::Backwards => items.rev().for_each(&mut each),
        }
    }
}

/// The value of an access list: entries for the owner, these users, the group, the mask, and others.
fn access_list(users: [u8; 3]) -> Vec<u8> {
    let entry = |tag: u8, rights: u8, id: [u8; 4]| [[tag, 0, rights, 0], id].concat();
    let none = [0xFF; 4];
    let mut list = vec![2, 0, 0, 0];
    list.extend(entry(0x01, 6, none));
    users.iter().for_each(|user| list.extend(entry(0x02, user % 8, [*user, 1, 0, 0])));
    for (tag, rights) in [(0x04, 4), (0x10, 7), (0x20, 4)] {
        list.extend(entry(tag, rights, none));
    }
    list
}

/// Makes the tree. All its times are equal. With `Backwards`, holes smaller than 64 KiB are stored as zeros.
fn make(tree: &Path, order: Order) {
    fs::DirBuilder::new().mode(0o755).create(tree).unwrap();
    order.of(0..80, |number| {
        let dir = tree.join(format!("dir {}", number % 8));
        let _ = fs::create_dir(&dir);
        fs::write(dir.join(format!("{number:060}")), pattern(number * 700, number as u64)).unwrap();
    });
    order.of(["B", "a", "é", "ä", "Z"].into_iter(), |name| {
        fs::write(tree.join(name), name).unwrap();
    });
    order.of(["one", "two", "three"].into_iter(), |name| {
        let any = ["one", "two", "three"].map(|name| tree.join(name));
        match any.iter().find(|path| path.exists()) {
            Some(first) => fs::hard_link(first, tree.join(name)).unwrap(),
            None => fs::write(tree.join(name), "linked").unwrap(),
        }
    });
    let attributes = (0..12).flat_map(|number| [("a", number), ("dir 3", number)]);
    order.of(attributes, |(name, number)| {
        let attribute = format!("user.{}", number * 7 % 12);
        let value = pattern(number as usize * 20, number);
        setxattr(tree.join(name), attribute, &value, XattrFlags::empty()).unwrap();
    });
    let users = if order == Order::Forwards { [1, 2, 3] } else { [3, 2, 1] };
    for name in ["B", "dir 5"] {
        setxattr(tree.join(name), ACCESS, &access_list(users), XattrFlags::empty()).unwrap();
    }
    symlink("one", tree.join("link")).unwrap();
    let sparse = File::create(tree.join("sparse")).unwrap();
    sparse.set_len(3 << 20 | 1).unwrap();
    let keeps = if order == Order::Forwards { 4096 } else { 64 << 10 };
    let ranges = [(100 << 10, 2_u64), (200 << 10, 100), (250 << 10, 80 << 10), (1 << 20, 5)];
    for (at, data) in ranges {
        let (begin, end) = (at / keeps * keeps, (at + data).next_multiple_of(keeps));
        sparse.write_all_at(&vec![0; (end - begin) as usize], begin).unwrap();
    }
    for (at, data) in ranges {
        sparse.write_all_at(&vec![0x17; data as usize], at).unwrap();
    }
    // A file without holes has no holes in the image.
    fs::write(tree.join("zeros"), vec![0; 300_000]).unwrap();
    fs::set_permissions(tree.join("Z"), fs::Permissions::from_mode(0o6711)).unwrap();
    if rustix::process::geteuid().is_root() {
        let kind = rustix::fs::FileType::CharacterDevice;
        let device = rustix::fs::makedev(5, 1);
        mknodat(rustix::fs::CWD, tree.join("console"), kind, Mode::RUSR, device).unwrap();
        chown(tree.join("three"), Some(1000), Some(1001)).unwrap();
    }
    let mut touch = tool("find");
    touch.arg(tree).args(["-exec", "touch", "-hd", "2001-02-03", "{}", "+"]);
    succeed(&mut touch);
}

/// Builds an image whose size depends on the tree.
fn build(bench: &Bench, source: &str, host: &str) -> Vec<u8> {
    let script = format!("{host} \"$0\" mkfs -q -b 4K -d {source} image");
    let mut command = tool("sh");
    command.args(["-ec", &script, IRONMAP]).current_dir(bench.path(""));
    succeed(command.env("SOURCE_DATE_EPOCH", "1700000000"));
    let image = fs::read(bench.path("image")).unwrap();
    fs::remove_file(bench.path("image")).unwrap();
    image
}

fn differing(one: &[u8], other: &[u8]) -> Option<usize> {
    if one.len() != other.len() {
        return Some(one.len().min(other.len()));
    }
    one.iter().zip(other).position(|(one, other)| one != other)
}

/// The tree is created in two orders. Images are built from both trees with different locales, time zones, umasks, processors and users.
/// Images are also built from archives that GNU tar made of both trees. In an archive, extended attributes have the order in which the host
/// lists them. All images are equal.
#[test]
fn the_same_tree_makes_the_same_image() {
    require!([Need::Tool("tar"), Need::Tool("taskset")]);
    let bench = Bench::empty();
    fs::set_permissions(bench.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    make(&bench.path("one"), Order::Forwards);
    make(&bench.path("two"), Order::Backwards);
    let first = build(&bench, "one", "");
    fs::write(bench.path("kept"), &first).unwrap();
    succeed(tool("e2fsck").arg("-fn").arg(bench.path("kept")));
    let map = text(&bench.succeed(["map", "kept:/zeros"]));
    assert!(!map.contains("hole"), "{map}");
    let hosts = [
        "",
        "umask 077; env LC_ALL=C.UTF-8 LANG=de_DE.UTF-8 TZ=Asia/Kolkata HOME=/nowhere USER=x",
        "umask 0; taskset -c 0",
    ];
    for (source, host) in hosts.iter().flat_map(|host| [("one", *host), ("two", *host)]) {
        let differs = differing(&first, &build(&bench, source, host));
        assert_eq!(differs, None, "{source}, built by: {host}");
    }
    for tree in ["one", "two"] {
        let mut tar = tool("tar");
        tar.args(["--format=pax", "--xattrs", "--xattrs-include=*", "--sort=name", "-cf"]);
        let archive = bench.path(&format!("{tree}.tar"));
        succeed(tar.arg(archive).arg("-C").arg(bench.path(tree)).arg("."));
    }
    let differs = differing(&build(&bench, "one.tar", ""), &build(&bench, "two.tar", ""));
    assert_eq!(differs, None, "archives");
}

/// If an option names the owner of files, the image does not depend on the user that builds it.
#[test]
fn an_image_does_not_depend_on_its_builder() {
    require!([Need::Root, Need::Tool("setpriv")]);
    let bench = Bench::empty();
    fs::set_permissions(bench.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    make(&bench.path("one"), Order::Forwards);
    succeed(tool("chmod").args(["-R", "a+rX"]).arg(bench.path("one")));
    // Another user may have no access to the program's path.
    fs::copy(IRONMAP, bench.path("ironmap")).unwrap();
    let build = |user: &[&str]| {
        let mut command = tool("setpriv");
        command.args(user).args(["./ironmap", "mkfs", "-q", "-b", "4K", "--owner", "0:0"]);
        command.args(["-d", "one", "image"]).current_dir(bench.path(""));
        succeed(command.env("SOURCE_DATE_EPOCH", "1700000000"));
        let image = fs::read(bench.path("image")).unwrap();
        fs::remove_file(bench.path("image")).unwrap();
        image
    };
    let root = build(&["--reuid=0"]);
    let other = build(&["--reuid=65534", "--regid=65534", "--clear-groups"]);
    assert_eq!(differing(&root, &other), None);
}
