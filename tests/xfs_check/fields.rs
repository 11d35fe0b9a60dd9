//! Changes bytes of structures. In most cases the checksum is repaired afterwards.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

use crate::base::Base;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::structures::{self, Kind, Structure};
use crate::{damage, require};

/// The structures of each undamaged volume. The key is the name of the volume.
static FOUND: Mutex<Vec<(&str, Vec<Structure>)>> = Mutex::new(Vec::new());

fn structures_of(base: &Base, kind: Kind) -> Vec<Structure> {
    let mut found = FOUND.lock().unwrap();
    if !found.iter().any(|(name, _)| *name == base.name) {
        found.push((base.name, structures::find(&base.file())));
    }
    let (_, all) = found.iter().find(|(name, _)| *name == base.name).unwrap();
    all.iter().filter(|structure| structure.kind == kind).copied().collect()
}

/// Changes some bytes of a structure. Returns a description.
fn change(bytes: &mut [u8], kind: Kind, rng: &mut Rng) -> String {
    // Most fields are at the beginning of a structure. So the first bytes are changed more often.
    let most = match (kind, rng.below(4)) {
        (Kind::Superblock, _) => 264,
        (Kind::Group, _) => 344,
        (_, 0) => bytes.len(),
        (Kind::Inode, _) => 200,
        _ => 120,
    };
    let at = rng.below(most.min(bytes.len()) as u64) as usize;
    let before = bytes[at];
    match rng.below(4) {
        0 => bytes[at] = rng.below(256) as u8,
        1 => bytes[at] ^= 1 << rng.below(8),
        2 => bytes[at] = bytes[at].wrapping_add(1),
        _ => bytes[at] = [0, 0xFF][rng.below(2) as usize],
    }
    format!("byte {at} {before:#04x} -> {:#04x}", bytes[at])
}

fn once(base: &Base, path: &Path, kind: Kind, rng: &mut Rng) -> Option<String> {
    let structures = structures_of(base, kind);
    if structures.is_empty() {
        return None;
    }
    let structure = structures[rng.below(structures.len() as u64) as usize];
    let file = std::fs::File::options().read(true).write(true).open(path).expect("the copy");
    let mut bytes = structure.read(&file);
    let before = bytes.clone();
    let mut what = format!("{kind:?} at {:#x}: {}", structure.at, change(&mut bytes, kind, rng));
    if rng.below(8) != 0 {
        structure.repair(&mut bytes);
    } else {
        what += ", checksum left";
    }
    if bytes == before {
        return None;
    }
    file.write_all_at(&bytes, structure.at).expect("write the copy");
    Some(what)
}

/// Defines one test for each kind of structure, with a name.
macro_rules! kinds {
    ($($name:ident: $kind:expr;)+) => {
        $(#[test]
        fn $name() {
            require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_repair")]);
            damage(stringify!($name), |base, path, rng| once(base, path, $kind, rng));
        })+
    };
}

kinds! {
    superblocks: Kind::Superblock;
    headers_of_groups: Kind::Group;
    trees: Kind::Tree;
    inodes: Kind::Inode;
    maps: Kind::Map;
    directories: Kind::Directory;
    indexes: Kind::Index;
    rooms: Kind::Room;
    attributes: Kind::Attribute;
    remote_values: Kind::Remote;
}
