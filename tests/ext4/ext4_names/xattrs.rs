//! Extended attributes. The test compares them with the kernel's attributes and with the attributes of the files that mke2fs copied.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ironmap::fs::ext4::Ext4Inode;

use ironmap::fs::Follow;

use crate::common::command::run;
use crate::common::image::{Image, scratch, words};
use crate::common::skip::Need;
use crate::require;

type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

/// The attributes of a file, read by system calls.
fn by_system_calls(path: &Path) -> Attributes {
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

fn ours(inode: &Ext4Inode) -> Attributes {
    let all: Attributes =
        inode.xattrs().unwrap().into_iter().map(|xattr| (xattr.name, xattr.value)).collect();
    for (name, value) in &all {
        assert_eq!(inode.xattr(name).unwrap().as_ref(), Some(value));
    }
    assert_eq!(inode.xattr(b"user.none").unwrap(), None);
    all
}

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
}

/// The kernel writes attributes in each form of storage. ironmap and the kernel then read the same attributes. The test compares names,
/// values, and access control lists in the form of the system call.
#[test]
fn attributes_are_those_that_the_kernel_gives() {
    require!([Need::Root], [Need::Tool("setfacl")]);
    for (options, large) in [
        ("-t ext2 -b 1024 -I 128", 200),
        ("-t ext3 -b 4096 -I 256", 3000),
        ("-t ext4 -b 1024 -O inline_data -I 512", 600),
        ("-t ext4 -b 4096", 3000),
        ("-t ext4 -b 1024 -O ea_inode", 60_000),
        ("-t ext4 -b 4096 -O ea_inode,^metadata_csum", 65_536),
    ] {
        let image = Image::mke2fs("64M", &words(options));
        let mount = image.mount("rw");
        let mut expected = BTreeMap::new();
        let dir = mount.dir().join("dir");
        fs::create_dir(&dir).unwrap();
        let acl = ["-m", "u:1000:rw,g:7:r,m::rwx", "-m", "d:u:33:x", dir.to_str().unwrap()];
        run("setfacl", &acl);
        for name in ["small", "many", "large", "same-large", "none"] {
            fs::write(dir.join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("small", dir.join("link")).unwrap();
        set(&dir.join("link"), "trusted.on-a-link", b"1");
        set(&dir.join("small"), "user.empty", b"");
        set(&dir.join("small"), "trusted.größe", b"12345");
        set(&dir.join("small"), "security.other", &[0, 255, 7]);
        for number in 0..8 {
            let value = vec![number; usize::from(number) * 3];
            set(&dir.join("many"), &format!("user.number-{number}"), &value);
        }
        let value: Vec<u8> = (0..large as u32).map(|byte| (byte * 7 + byte / 256) as u8).collect();
        for name in ["large", "same-large"] {
            set(&dir.join(name), "user.large", &value);
        }
        for path in
            fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).chain([dir.clone()])
        {
            let attributes = by_system_calls(&path);
            expected.insert(path.strip_prefix(mount.dir()).unwrap().to_owned(), attributes);
        }
        drop(mount);
        let fs = image.ext4();
        for (path, expected) in expected {
            let inode = fs.resolve(path.as_os_str().as_encoded_bytes(), Follow::NotLast).unwrap();
            assert!(ours(&inode) == expected, "{options}: {}", path.display());
        }
    }
}

/// Attributes that debugfs wrote are read correctly, with every kind of name that debugfs supports. This test does not need the kernel.
#[test]
fn attributes_are_those_that_debugfs_wrote() {
    let source = scratch();
    fs::write(source.path().join("file"), "content").unwrap();
    let image = Image::populated("16M", &words("-t ext4 -b 1024 -O inline_data"), source.path());
    let long = "v".repeat(400);
    let mut expected = BTreeMap::new();
    let mut commands = String::new();
    for (name, value) in [
        ("user.short", "1"),
        ("trusted.long", &long),
        ("security.capability", "v2"),
        ("system.richacl", "r"),
        ("system.other", "s"),
    ] {
        commands.push_str(&format!("ea_set file {name} {value}\n"));
        expected.insert(name.as_bytes().to_vec(), value.as_bytes().to_vec());
    }
    image.debugfs(&commands);
    let list = image.ask_debugfs("ea_list file\n");
    assert!(list.contains("system.data"), "the file is inline: {list}");
    let file = image.ext4().resolve(b"file", Follow::All).unwrap();
    assert_eq!(ours(&file), expected);
}
