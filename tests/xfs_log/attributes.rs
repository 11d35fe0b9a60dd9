//! The log contains unfinished changes of attributes. ironmap completes them in memory. The result must be the same as after the kernel's
//! recovery.

use std::collections::BTreeMap;
use std::path::Path;

use ironmap::ErrorKind;
use ironmap::fs::Follow;
use ironmap::fs::check::Severity;
use rustix::fs::XattrFlags;

use crate::common::command::run;
use crate::common::image::{Image, words};
use crate::common::kernel;
use crate::common::skip::Need;
use crate::common::xfsprogs;
use crate::forged::World;
use crate::require;
use crate::state::{Mount, copy};

/// The operations that an attribute intent can contain, and the flags of name spaces.
const SET: u32 = 1;
const REMOVE: u32 = 2;
const REPLACE: u32 = 3;
const SET_PARENT: u32 = 4;
const REMOVE_PARENT: u32 = 5;
const REPLACE_PARENT: u32 = 6;
const USER: u32 = 0;
const ROOT: u32 = 2;
const SECURE: u32 = 4;
const PARENT: u32 = 8;

type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

/// The regions of an intent item. The first region is the item, and the others are its names and values.
fn intent(
    inode: u64,
    (operation, filter): (u32, u32),
    names: &[&[u8]],
    values: &[&[u8]],
) -> Vec<Vec<u8>> {
    let mut bytes = vec![0; 40];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    let parts: Vec<_> = names.iter().chain(values).filter(|part| !part.is_empty()).collect();
    put(0, &[0x46, 0x12, parts.len() as u8 + 1, 0]);
    // Each tested change gets a different intent ID.
    let id = u64::from(operation) << 16 | u64::from(filter) << 8 | names[0].len() as u64;
    put(8, &(inode << 32 | id).to_le_bytes());
    put(16, &inode.to_le_bytes());
    put(24, &operation.to_le_bytes());
    for (at, name) in names.iter().enumerate() {
        put(28 + at * 2, &(name.len() as u16).to_le_bytes());
    }
    put(32, &(values.first().map_or(0, |value| value.len()) as u32).to_le_bytes());
    put(36, &filter.to_le_bytes());
    let padded =
        |part: &[u8]| [part, &vec![0; part.len().next_multiple_of(4) - part.len()]].concat();
    [bytes].into_iter().chain(parts.into_iter().map(|part| padded(part))).collect()
}

/// The value of a parent pointer.
fn parent(directory: u64, generation: u32) -> Vec<u8> {
    [&directory.to_be_bytes()[..], &generation.to_be_bytes()].concat()
}

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty()).unwrap();
}

fn ours(image: &Image, name: &str) -> ironmap::Result<Attributes> {
    let volume = image.open().unwrap();
    assert!(volume.xfs().unwrap().log().recovered);
    let inode = volume.fs().resolve(name.as_bytes(), Follow::All)?;
    Ok(inode.xattrs()?.into_iter().map(|xattr| (xattr.name, xattr.value)).collect())
}

/// Sets the feature bit that says that the log contains attribute intents. Without this bit, the kernel refuses such intents for attributes
/// that users see.
fn allow(image: &Image) {
    let path = image.path();
    let path = path.to_str().unwrap();
    let write = "write -d features_log_incompat 1";
    for group in ["sb 0", "sb 1", "sb 2", "sb 3"] {
        run("xfs_db", &["-x", "-c", group, "-c", write, path]);
    }
}

/// Unfinished changes of attributes are completed. They set, replace and remove attributes. The attributes are in the inode, in a leaf, or
/// have their value in separate blocks.
#[test]
fn begun_changes_of_attributes_are_finished() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_db")]);
    let long = [b'v'; 9000];
    let mut world = World::made_by("mkfs.xfs", &[], |image| {
        let mount = Mount::new(image, "rw").unwrap();
        let [one, other] = ["one", "other"].map(|name| mount.dir().join(name));
        for name in ["user.kept", "user.replaced", "user.removed", "trusted.removed"] {
            set(&one, name, b"before");
        }
        for number in 0..40 {
            set(&other, &format!("user.attribute-{number}"), &[number; 100]);
        }
        set(&other, "user.long", &long);
        drop(mount);
        allow(image);
    });
    let (tail, [one, other]) = (world.next, world.numbers);
    let user = |operation| (operation, USER);
    world.transaction(
        tail,
        &[
            intent(one, user(REPLACE), &[b"replaced"], &[b"after"]),
            intent(one, user(REMOVE), &[b"removed"], &[]),
            intent(one, (REMOVE, ROOT), &[b"removed"], &[]),
            intent(one, (SET, SECURE), &[b"new"], &[b"of security"]),
        ],
    );
    world.transaction(tail, &[intent(one, user(SET), &[b"empty"], &[])]);
    world.transaction(tail, &[intent(other, user(SET), &[b"longer"], &[&[b'w'; 20_000]])]);
    world.transaction(tail, &[intent(other, user(REMOVE), &[b"long"], &[])]);
    world.transaction(tail, &[intent(other, user(REPLACE), &[b"attribute-7"], &[&long])]);
    let image = &world.image;
    let recovered = copy(image);
    let mount = Mount::new(&recovered, "ro").unwrap();
    for (name, count) in [("one", 4), ("other", 41)] {
        let ours = ours(image, name).unwrap();
        assert_eq!(ours.len(), count, "{name}: {:?}", ours.keys());
        assert!(ours == kernel::xattrs(&mount.dir().join(name)), "{name}: {:?}", ours.keys());
    }
    drop(mount);
    recovered.check();
}

/// Unfinished changes of parent pointers are completed. No system call shows parent pointers. So a check compares them with the names.
#[test]
fn begun_changes_of_parent_pointers_are_finished() {
    require!([Need::Root, Need::Variable(xfsprogs::VARIABLE)]);
    let mkfs = xfsprogs::newer("mkfs.xfs");
    let told = |image: &Image| {
        let volume = image.open().unwrap();
        let report = volume.fs().check(&mut |_| {}).unwrap();
        let wrong = report.findings.iter().filter(|finding| finding.severity != Severity::Note);
        wrong.map(ToString::to_string).collect::<Vec<_>>()
    };
    for (operation, lacks, has) in
        [(SET_PARENT, false, true), (REMOVE_PARENT, true, false), (REPLACE_PARENT, true, true)]
    {
        let mut world = World::made_by(&mkfs, &words("-n parent=1"), |_| {});
        let (tail, [one, _]) = (world.next, world.numbers);
        let root = world.image.open().unwrap().fs().resolve(b"", Follow::All).unwrap();
        let (old, new) = (parent(root.number().0, root.stat().generation), parent(999, 7));
        let mut change = match operation {
            SET_PARENT => intent(one, (operation, PARENT), &[b"new"], &[&new]),
            REMOVE_PARENT => intent(one, (operation, PARENT), &[b"one"], &[&old]),
            _ => intent(one, (operation, PARENT), &[b"one", b"new"], &[&old, &new]),
        };
        change[0][4..8].copy_from_slice(&world.generation(one).to_le_bytes());
        world.transaction(tail, &[change]);
        let before = told(&world.image);
        let is_told = |part: &str| before.iter().any(|finding| finding.contains(part));
        assert_eq!(is_told("lacks the name \"one\""), lacks, "{operation}: {before:?}");
        assert_eq!(
            is_told("has the name \"new\" in directory 999, of generation 7"),
            has,
            "{operation}: {before:?}"
        );
        let recovered = copy(&world.image);
        drop(Mount::new(&recovered, "ro").unwrap());
        assert_eq!(told(&recovered), before, "{operation}, by the kernel's recovery");
    }
}

/// A change that no kernel writes is refused. The error names the inode and the field.
#[test]
fn wrong_changes_of_attributes_are_refused() {
    require!([Need::Tool("mkfs.xfs"), Need::Tool("xfs_db")]);
    let of = |one: u64| {
        let cut = |mut item: Vec<Vec<u8>>| {
            item.pop();
            item
        };
        let longer = |mut item: Vec<Vec<u8>>| {
            item.push(vec![0; 4]);
            item[0][2] += 1;
            item
        };
        [
            ("operation", intent(one, (9, USER), &[b"a"], &[b"b"])),
            ("operation", intent(one, (SET_PARENT, USER), &[b"a"], &[b"b"])),
            ("alfi_attr_filter", intent(one, (SET, ROOT | SECURE), &[b"a"], &[b"b"])),
            ("alfi_attr_filter", intent(one, (SET, 0x10), &[b"a"], &[b"b"])),
            ("operation", intent(one, (SET | 0x100, USER), &[b"a"], &[b"b"])),
            ("alfi_name_len", intent(one, (SET, USER), &[b"a\0b"], &[b"b"])),
            ("alfi_name_len", intent(one, (SET, USER), &[&[b'n'; 256]], &[b"b"])),
            ("alfi_value_len", intent(one, (REMOVE, USER), &[b"a"], &[b"b"])),
            ("alfi_value_len", intent(one, (SET_PARENT, PARENT), &[b"a"], &[&[0; 16]])),
            ("alfi_name_len", intent(one, (SET_PARENT, PARENT), &[b"a/b"], &[&[0; 12]])),
            ("more data than", longer(intent(one, (SET, USER), &[b"a"], &[b"b"]))),
            ("alfi_name_len", intent(one, (SET, USER), &[b""], &[b"b"])),
            ("truncated", cut(intent(one, (SET, USER), &[b"a"], &[b"b"]))),
            (
                "truncated",
                intent(one, (SET, USER), &[b"a"], &[b"b"])[..1]
                    .iter()
                    .map(|bytes| bytes[..20].to_vec())
                    .collect(),
            ),
        ]
    };
    let with_kernel = Need::Root.missing().is_none();
    for at in 0..of(0).len() {
        let mut world = World::made_by("mkfs.xfs", &[], allow);
        let (tail, [one, _]) = (world.next, world.numbers);
        let (part, item) = of(one).into_iter().nth(at).unwrap();
        let what = format!("{part}, {item:?}");
        world.transaction(tail, &[item]);
        if with_kernel {
            assert!(Mount::new(&copy(&world.image), "ro").is_err(), "{what}: the kernel");
        }
        let error = world.image.open().map(drop).expect_err(part);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

/// The log is full of changes of one inode. The recovery by ironmap completes them within ten seconds. If the inode is missing, ironmap
/// reports this.
#[test]
fn many_changes_of_attributes_end() {
    require!([Need::Tool("mkfs.xfs"), Need::Tool("xfs_db")]);
    let mut world = World::made_by("mkfs.xfs", &[], allow);
    let (tail, [one, _]) = (world.next, world.numbers);
    for number in 0..400 {
        let of = |at: u64| {
            let name = format!("name-{:06}", number * 100 + at);
            let mut item = intent(one, (SET, USER), &[name.as_bytes()], &[b"v"]);
            item[0][8..16].copy_from_slice(&(number * 100 + at + 1).to_le_bytes());
            item
        };
        world.transaction(tail, &(0..100).map(of).collect::<Vec<_>>());
    }
    let begun = std::time::Instant::now();
    assert_eq!(ours(&world.image, "one").unwrap().len(), 40_000);
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());

    let mut world = World::made_by("mkfs.xfs", &[], allow);
    let tail = world.next;
    world.transaction(tail, &[intent(99_999, (SET, USER), &[b"a"], &[b"b"])]);
    let report = world.image.open().unwrap().fs().check(&mut |_| {}).unwrap();
    let told = report.findings.iter().any(|finding| finding.to_string().contains("not in use"));
    assert!(told && !report.is_clean(), "{:?}", report.findings);
}
