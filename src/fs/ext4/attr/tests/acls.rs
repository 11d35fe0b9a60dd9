//! Tests of access control lists: ironmap and the kernel must compute the same modes and lists.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use super::xattrs::{find, remove, set};
use crate::fs::ext4::attr::Attributes;
use crate::fs::ext4::for_tests::{Image, Mount};
use crate::fs::{FileSystem, SetXattr};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// A list in the form of the system calls: tags, permissions, ids.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

const NOBODY: u32 = u32::MAX;

/// Valid lists, followed by invalid lists.
fn lists() -> Vec<Vec<u8>> {
    let list = |entries: &[(u16, u16, u32)]| list(entries);
    let (user, group, other) = ((1, 6, NOBODY), (4, 5, NOBODY), (0x20, 1, NOBODY));
    vec![
        list(&[user, group, other]),
        list(&[user, (2, 7, 1000), (2, 0, 33), group, (0x10, 3, NOBODY), other]),
        list(&[user, group, (8, 7, 7), (0x10, 6, NOBODY), other]),
        list(&[(1, 7, NOBODY), group, (0x10, 7, NOBODY), (0x20, 0, NOBODY)]),
        list(&[(1, 0, NOBODY), (4, 0, NOBODY), (0x20, 7, 5)]),
        list(&[]),
        list(&[user, group]),
        list(&[user, (2, 7, 1000), group, other]),
        list(&[user, group, other, (0x10, 3, NOBODY)]),
        list(&[user, (2, 7, NOBODY), group, (0x10, 3, NOBODY), other]),
        list(&[user, group, group, other]),
        list(&[user, (2, 8, 1000), group, (0x10, 3, NOBODY), other]),
        list(&[user, group, (0x40, 1, NOBODY), other]),
        list(&[user, group, other])[..20].to_vec(),
        vec![1, 0, 0, 0],
    ]
}

fn kernels(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    let len = rustix::fs::lgetxattr(path, name, &mut value).ok()?;
    value.truncate(len);
    Some(value)
}

fn mounted() -> Option<(Image, Mount)> {
    let image = Image::with_files("-t ext4 -I 256", &["a", "b"]);
    let mount = image.mount()?;
    Some((image, mount))
}

/// The kernel and ironmap compute the same mode and the same lists. The test sets and removes lists, and changes the modes of files with
/// lists.
#[test]
fn lists_and_modes_follow_each_other() {
    let Some((_other, mount)) = mounted() else { return };
    let image = Image::with_files("-t ext4 -I 256", &["a", "b"]);
    let fs = image.open();
    let same = |context: &str| {
        for path in ["a", "dir"] {
            let (inode, at) = (find(&fs, path), mount.path(path));
            let mode = std::fs::symlink_metadata(&at).unwrap().mode();
            assert_eq!(inode.stat().mode, mode, "{context}: mode of {path}");
            for name in [ACCESS, DEFAULT] {
                let ours = inode.xattr(name.as_bytes()).unwrap();
                assert_eq!(ours, kernels(&at, name), "{context}: {name} of {path}");
            }
        }
    };
    for (number, value) in lists().into_iter().enumerate() {
        for (path, name) in [("a", ACCESS), ("dir", ACCESS), ("dir", DEFAULT)] {
            let at = mount.path(path);
            let ours = set(&fs, path, name.as_bytes(), &value, SetXattr::Any);
            let flags = rustix::fs::XattrFlags::empty();
            let kernels = rustix::fs::lsetxattr(&at, name, &value, flags);
            let ours = ours.map_err(|error| error.errno().0);
            assert_eq!(ours, kernels.map_err(|error| error.raw_os_error()), "list {number}");
            same(&format!("list {number} on {path}"));
        }
        for mode in [0o640, 0o4751, 0o007] {
            for path in ["a", "dir"] {
                let permissions = PermissionsExt::from_mode(mode);
                std::fs::set_permissions(mount.path(path), permissions).unwrap();
                let inode = find(&fs, path);
                let mode = inode.stat().mode & 0o170_000 | mode;
                fs.transact(inode.xattr_credits(), |h| {
                    Attributes::of(&inode).chmod_acl(h, mode)?;
                    h.update_inode(&inode, |raw| raw.set_mode(mode))
                })
                .unwrap();
            }
            same(&format!("list {number}, mode {mode:o}"));
        }
    }
    for (path, name) in [("a", ACCESS), ("dir", ACCESS), ("dir", DEFAULT), ("a", DEFAULT)] {
        let ours = remove(&fs, path, name.as_bytes()).map_err(|error| error.errno().0);
        let kernels = rustix::fs::lremovexattr(mount.path(path), name);
        assert_eq!(ours, kernels.map_err(|error| error.raw_os_error()));
        same("removed");
    }
    fs.close().unwrap();
    image.fsck();
}

/// New files and directories inherit the same mode and the same lists in ironmap and in the kernel. The test uses lists with and without a
/// mask.
#[test]
fn new_files_inherit_as_from_the_kernel() {
    let Some((image, mount)) = mounted() else { return };
    let mut made = Vec::new();
    for (number, value) in lists().into_iter().take(5).enumerate() {
        let dir = format!("dir/{number}");
        std::fs::create_dir(mount.path(&dir)).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(mount.path(&dir), DEFAULT, &value, flags).unwrap();
        made.push(dir);
    }
    made.push("dir".to_owned());
    for dir in &made {
        let script = "umask 027; touch file; mkdir sub; mkfifo pipe; ln -s x link";
        let mut sh = Command::new("sh");
        assert!(sh.args(["-c", script]).current_dir(mount.path(dir)).status().unwrap().success());
    }
    drop(mount);
    let fs = image.open();
    for dir in &made {
        for (name, mode) in
            [("file", 0o100_666), ("sub", 0o040_777), ("pipe", 0o010_666), ("link", 0o120_777)]
        {
            let inherited = find(&fs, dir).inherited_acl(mode, 0o027).unwrap();
            let kernels = find(&fs, &format!("{dir}/{name}"));
            assert_eq!(inherited.mode, kernels.stat().mode, "{dir}/{name}");
            for name in [ACCESS, DEFAULT] {
                remove(&fs, "b", name.as_bytes()).unwrap();
            }
            let ours = find(&fs, "b");
            let credits = ours.xattr_credits();
            fs.transact(credits, |h| Attributes::of(&ours).set_inherited(h, &inherited)).unwrap();
            let ours = find(&fs, "b");
            for list in [ACCESS, DEFAULT] {
                let [ours, kernels] =
                    [&ours, &kernels].map(|inode| inode.xattr(list.as_bytes()).unwrap());
                assert_eq!(ours, kernels, "{dir}/{name}: {list}");
            }
        }
    }
}
