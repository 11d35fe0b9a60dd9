//! Volumes that xfs_mdrestore restores from a metadata dump. Such a volume lacks the content of files and can have obscured names.

use std::collections::BTreeMap;

use crate::common::command::run;
use crate::common::compare::assert_same;
use crate::common::image::{Image, scratch_in};
use crate::common::kernel;
use crate::common::skip::Need;
use crate::common::view::{Record, Subject, View};
use crate::fill::{Amount, fill};
use crate::{DEPTH, FOR_READING, SEED, SIZE, require};

/// The properties of a file that an obscured metadata dump preserves. Such a dump replaces the bytes of names and values, and keeps their
/// lengths.
fn structure(record: &Record) -> String {
    let lengths = |name: &[u8], value: &[u8]| match name.strip_prefix(b"system.posix_acl_") {
        // If the name of an access control list is obscured, ironmap returns the list in its on-disk form. In this form an entry has 12
        // bytes instead of 8.
        Some(kind) => {
            let disk =
                if kind == b"access" { "trusted.SGI_ACL_FILE" } else { "trusted.SGI_ACL_DEFAULT" };
            (disk.len(), 4 + (value.len() - 4) / 8 * 12)
        }
        None => (name.len(), value.len()),
    };
    let xattrs = record.xattrs.iter().flatten();
    let mut xattrs: Vec<_> = xattrs.map(|(name, value)| lengths(name, value)).collect();
    xattrs.sort_unstable();
    let target = record.target.as_ref().map(Vec::len);
    // Flags, generation and project are not compared here, because the kernel does not report them for every type of file. The comparison
    // of dumps with plain names includes them.
    let record = Record {
        xattrs: None,
        target: None,
        reads: Vec::new(),
        flags: None,
        generation: None,
        project: None,
        device: record.device.filter(|device| *device != (0, 0)),
        ..record.clone()
    };
    format!("{record:?} {xattrs:?} {target:?}")
}

/// For each inode number: the lengths of the file's names, and the properties of the file that an obscured dump preserves.
fn structures(view: &View) -> BTreeMap<u64, (Vec<usize>, String)> {
    let mut files = BTreeMap::<_, (Vec<usize>, String)>::new();
    for (path, record) in view {
        let file = files.entry(record.inode.unwrap()).or_default();
        file.0.push(path.len());
        file.1 = structure(record);
    }
    files.values_mut().for_each(|file| file.0.sort_unstable());
    files
}

#[test]
fn restored_dumps_have_the_structure_of_the_original() {
    require!([
        Need::Root,
        Need::Tool("mkfs.xfs"),
        Need::Tool("xfs_metadump"),
        Need::Tool("xfs_mdrestore")
    ]);
    for (options, block) in [("size=4096", 4096), ("size=1024", 1024)] {
        let image = Image::mkfs_xfs(SIZE, &["-b", options]).unwrap();
        fill(image.mount("rw").dir(), block, Amount::Small, true);
        let expected = {
            let mount = image.mount(FOR_READING);
            let mut expected = kernel::view_with_maps(mount.dir(), DEPTH, SEED);
            kernel::add_flags(mount.dir(), &mut expected);
            expected
        };
        let dir = scratch_in(std::path::Path::new("/dev/shm"));
        let dump = dir.path().join("dump");
        // With -a, the dump contains metadata blocks in full. With -o, it contains the real names.
        for how in [&["-o"][..], &["-a", "-o"], &[], &["-a"]] {
            let what = format!("{options}, xfs_metadump {how:?}");
            let (from, dump) = (image.path(), dump.to_str().unwrap());
            run("xfs_metadump", &[how, &[from.to_str().unwrap(), dump]].concat());
            let restored = Image::within_xfs(scratch_in(std::path::Path::new("/dev/shm")));
            run("xfs_mdrestore", &[dump, restored.path().to_str().unwrap()]);
            restored.check();
            let actual = Subject::open(&restored).view();
            if how.contains(&"-o") {
                let mut named = expected.clone();
                for record in named.values_mut() {
                    record.reads.clear();
                    let xattrs = record.xattrs.as_mut().unwrap();
                    xattrs.retain(|name, _| !name.starts_with(b"trusted.SGI_ACL_"));
                }
                assert_same(&named, &actual, &what);
            } else {
                let mut obscured = expected.clone();
                for record in obscured.values_mut() {
                    let xattrs = record.xattrs.as_mut().unwrap();
                    xattrs.retain(|name, _| !name.starts_with(b"trusted.SGI_ACL_"));
                }
                let (ours, theirs) = (structures(&actual), structures(&obscured));
                for (number, theirs) in &theirs {
                    assert_eq!(ours.get(number), Some(theirs), "{what}: inode {number}");
                }
                assert_eq!(ours.len(), theirs.len(), "{what}");
                let shared = expected.keys().filter(|path| actual.contains_key(*path)).count();
                assert!(shared < expected.len() / 2, "{what}: names are as they were");
                // The kernel and ironmap see the same tree, even if the dump has lost data.
                crate::compare_with_kernel(&restored, "", &what);
            }
        }
    }
}
