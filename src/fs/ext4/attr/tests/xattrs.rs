//! Tests that set and remove attributes, and compare the results with a model and with the kernel.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::image::Rng;
use crate::ErrorKind;
use crate::error::Result;
use crate::fs::ext4::attr::Attributes;
use crate::fs::ext4::for_tests::Image;
use crate::fs::ext4::operation::InodeToChange;
use crate::fs::ext4::{Ext4, Inode};
use crate::fs::{FileSystem, Follow, SetXattr};

pub(super) type Values = BTreeMap<Vec<u8>, Vec<u8>>;

const FILES: [&str; 3] = ["a", "b", "c"];
const KINDS: [&str; 8] = [
    "-t ext4 -b 4096 -I 128",
    "-t ext4 -b 1024 -I 256",
    "-t ext4 -b 4096 -I 1024 -O inline_data",
    "-t ext4 -b 1024 -I 256 -O inline_data,ea_inode",
    "-t ext4 -b 4096 -I 256 -O ea_inode",
    "-t ext4 -b 1024 -I 128 -O ea_inode,^metadata_csum,^64bit",
    "-t ext4 -b 4096 -O ea_inode,bigalloc -C 16384",
    "-t ext3 -b 1024 -O ea_inode",
];

pub(super) fn find(fs: &Arc<Ext4>, path: &str) -> InodeToChange<'static> {
    InodeToChange::in_test(fs.resolve(path.as_bytes(), Follow::NotLast).unwrap())
}

pub(super) fn set(
    fs: &Arc<Ext4>,
    path: &str,
    name: &[u8],
    value: &[u8],
    how: SetXattr,
) -> Result<()> {
    let inode = find(fs, path);
    fs.transact(inode.xattr_credits(), |h| Attributes::of(&inode).set_xattr(h, name, value, how))
}

pub(super) fn remove(fs: &Arc<Ext4>, path: &str, name: &[u8]) -> Result<()> {
    let inode = find(fs, path);
    fs.transact(inode.xattr_credits(), |h| Attributes::of(&inode).remove_xattr(h, name))
}

pub(super) fn ours(inode: &Inode) -> Values {
    inode.xattrs().unwrap().into_iter().map(|xattr| (xattr.name, xattr.value)).collect()
}

pub(super) fn kernels(path: &Path) -> Values {
    let mut names = vec![0; 64 << 10];
    let len = rustix::fs::llistxattr(path, &mut names).unwrap();
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 64 << 10];
            let len = rustix::fs::lgetxattr(path, name, &mut value).unwrap();
            value.truncate(len);
            (name.to_vec(), value)
        })
        .collect()
}

/// After any sequence of sets and removals, the inode has the same attributes as the model. If there is no space for an attribute, nothing
/// changes. e2fsck and the kernel confirm the result.
#[test]
fn attributes_follow_a_model() {
    for (seed, kind) in (1..).zip(KINDS) {
        let image = Image::with_files(kind, &FILES);
        let mut rng = Rng(seed);
        let mut model: BTreeMap<&str, Values> =
            FILES.iter().chain(&["dir"]).map(|file| (*file, Values::new())).collect();
        let paths: Vec<_> = model.keys().copied().collect();
        let large = kind.contains("ea_inode");
        let mut refused = 0;
        for _ in 0..2 {
            let fs = image.open();
            for step in 0..150 {
                let path = paths[rng.below(paths.len())];
                let prefix = ["user.", "trusted.", "security."][rng.below(3)];
                let name = format!("{prefix}{}", "name".repeat(rng.below(8) + 1)).into_bytes();
                let context = format!("{kind}, seed {seed}, step {step}, {path}");
                let held = model.get_mut(path).unwrap();
                if rng.below(4) == 0 {
                    let removed = remove(&fs, path, &name).map_err(|error| error.kind());
                    let expected = held.remove(&name).map(|_| ()).ok_or(ErrorKind::NoData);
                    assert_eq!(removed, expected, "{context}");
                } else {
                    let most = [8, 100, 500, 3000, 65_537][rng.below(if large { 5 } else { 4 })];
                    let len = rng.below(most);
                    let value = rng.bytes(len);
                    match set(&fs, path, &name, &value, SetXattr::Any) {
                        Ok(()) => drop(held.insert(name, value)),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::NoSpace, "{context}: {error}");
                            refused += 1;
                        }
                    }
                }
                assert!(ours(&find(&fs, path)) == *held, "{context}");
            }
            fs.close().unwrap();
            drop(fs);
            image.fsck();
        }
        assert!(large || refused > 0, "{kind}: some had no room");
        let Some(mount) = image.mount() else { continue };
        for (path, held) in &model {
            assert!(kernels(&mount.path(path)) == *held, "{kind}, seed {seed}: {path}");
            if *path != "dir" {
                assert_eq!(std::fs::read(mount.path(path)).unwrap(), path.as_bytes(), "{kind}");
            }
        }
    }
}

/// The same steps have the same results in ironmap and in the kernel. The limit for the length of a value is also the same.
#[test]
fn the_kernel_refuses_the_same() {
    for (seed, kind) in (100..).zip(&KINDS[..3]) {
        let (image, other) = (Image::with_files(kind, &FILES), Image::with_files(kind, &FILES));
        let Some(mount) = other.mount() else { return };
        let fs = image.open();
        let mut rng = Rng(seed);
        for step in 0..300 {
            let path = FILES[rng.below(3)];
            let name = format!("user.{}", "n".repeat(rng.below(10)));
            let most = [8, 40, 200, 1000, 4000][rng.below(5)];
            let len = rng.below(most);
            let value = rng.bytes(len);
            let at = mount.path(path);
            let (how, flag) = [
                (SetXattr::Any, rustix::fs::XattrFlags::empty()),
                (SetXattr::Create, rustix::fs::XattrFlags::CREATE),
                (SetXattr::Replace, rustix::fs::XattrFlags::REPLACE),
            ][rng.below(5).saturating_sub(2)];
            let (ours, kernels) = if rng.below(4) == 0 {
                (remove(&fs, path, name.as_bytes()), rustix::fs::lremovexattr(&at, name.as_str()))
            } else {
                (
                    set(&fs, path, name.as_bytes(), &value, how),
                    rustix::fs::lsetxattr(&at, name.as_str(), &value, flag),
                )
            };
            assert_eq!(
                ours.map_err(|error| error.errno().0),
                kernels.map_err(|error| error.raw_os_error()),
                "{kind}, seed {seed}, step {step}: {path} {name} {len} {how:?}"
            );
        }
        for path in FILES {
            assert!(ours(&find(&fs, path)) == kernels(&mount.path(path)), "{kind}: {path}");
        }
    }
}

/// ironmap refuses the names and values that Linux refuses, with the same errno.
#[test]
fn refusals_are_those_of_the_kernel() {
    let kind = "-t ext4 -O ea_inode";
    let (image, other) = (Image::with_files(kind, &FILES), Image::with_files(kind, &FILES));
    let Some(mount) = other.mount() else { return };
    let fs = image.open();
    let long = format!("user.{}", "x".repeat(251));
    let value = vec![1; 65_537];
    for (path, name, len) in [
        ("a", long.as_str(), 1),
        ("a", &long[..255], 1),
        ("a", "user.", 1),
        ("a", "user.x", 65_537),
        ("a", "user.x", 65_536),
        ("a", "nobody.x", 1),
        ("a", "system.x", 1),
        ("a", "system.data", 1),
        ("a", "plain", 1),
        ("link", "user.x", 1),
        ("link", "trusted.x", 1),
        ("link", "system.posix_acl_access", 0),
        ("a", "system.posix_acl_access", 1),
        ("a", "system.posix_acl_access", 4),
        ("a", "system.posix_acl_access", 0),
    ] {
        let value = &value[..len];
        let ours = set(&fs, path, name.as_bytes(), value, SetXattr::Any);
        let flags = rustix::fs::XattrFlags::empty();
        let kernels = rustix::fs::lsetxattr(mount.path(path), name, value, flags);
        let errno = |error: crate::Error| error.errno().0;
        let context = format!("{path} {name:.30} {len}");
        assert_eq!(ours.map_err(errno), kernels.map_err(|e| e.raw_os_error()), "set {context}");
        let ours = remove(&fs, path, name.as_bytes());
        let kernels = rustix::fs::lremovexattr(mount.path(path), name);
        assert_eq!(ours.map_err(errno), kernels.map_err(|e| e.raw_os_error()), "remove {context}");
    }
    fs.close().unwrap();
    image.fsck();
}

/// ironmap and the kernel compute the same hash for an attribute block with the same attributes. The kernel uses this hash to find a block
/// that an inode can share.
#[test]
fn blocks_have_the_hash_that_the_kernel_gives() {
    let kind = "-t ext4 -I 128";
    let (image, other) = (Image::with_files(kind, &FILES), Image::with_files(kind, &FILES));
    let Some(mount) = other.mount() else { return };
    let fs = image.open();
    for (name, value) in [("user.b", &b"value"[..]), ("trusted.\u{fc}", b""), ("user.aa", &[9; 77])]
    {
        set(&fs, "a", name.as_bytes(), value, SetXattr::Any).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(mount.path("a"), name, value, flags).unwrap();
    }
    drop(mount);
    let others = other.open();
    let header = |fs: &Arc<Ext4>| {
        let (block, _) = find(fs, "a").read_xattr_block().unwrap().unwrap();
        block[..16].to_vec()
    };
    assert_eq!(header(&fs), header(&others));
}
