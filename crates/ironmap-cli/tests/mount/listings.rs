//! Listings of directories whose names change during the listing.

use std::collections::HashSet;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::path::Path;

use rustix::fs::RawDir;

use crate::sides::{Ours, check, require_mounts};
use crate::support::{Bench, succeed, tool};

const NAMES: usize = 600;

/// Lists a directory in small pieces. After the first piece, calls `change` with the names that were listed so far.
fn list(dir: &Path, change: impl FnOnce(&HashSet<String>)) -> HashSet<String> {
    let open = File::open(dir).unwrap();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut listing = RawDir::new(&open, &mut buffer);
    let (mut listed, mut change) = (HashSet::new(), Some(change));
    while let Some(entry) = listing.next() {
        listed.insert(entry.unwrap().file_name().to_str().unwrap().to_owned());
        if listing.is_buffer_empty()
            && let Some(change) = change.take()
        {
            change(&listed);
        }
    }
    listed
}

/// If a name is renamed or removed during a listing of its directory, the rest of the listing does not contain the name, even if the server
/// has read the name ahead. A listed name would stay in the kernel's cache forever. It would then lead to a later file with the same inode
/// number.
#[test]
fn removed_names_are_not_listed() {
    require_mounts!("removed_names_are_not_listed");
    let bench = Bench::empty();
    succeed(tool("mke2fs").args(["-qF", "-t", "ext4"]).arg(bench.image()).arg("64M"));
    let mounted = bench.path("mounted");
    let ours = Ours::mount(&bench.image(), &mounted, "rw");
    let change = |what: &str, dir: &Path, old: &str| match what {
        "renamed" => fs::rename(dir.join(old), dir.join(format!("new-{old}"))).unwrap(),
        "moved" => fs::rename(dir.join(old), mounted.join(format!("new-{old}"))).unwrap(),
        _ => {
            fs::remove_file(dir.join(old)).unwrap();
            fs::write(dir.join(format!("new-{old}")), "another").unwrap();
        }
    };
    for what in ["renamed", "moved", "replaced"] {
        let dir = mounted.join(what);
        fs::create_dir(&dir).unwrap();
        let names: Vec<_> = (0..NAMES).map(|number| format!("name-{number}")).collect();
        for name in &names {
            fs::write(dir.join(name), name).unwrap();
        }
        let mut gone = Vec::new();
        let listed = list(&dir, |listed| {
            gone.extend(names.iter().filter(|name| !listed.contains(*name)));
            gone.iter().for_each(|name| change(what, &dir, name));
        });
        assert!(!gone.is_empty() && gone.len() < NAMES);
        for name in gone {
            assert!(!listed.contains(name), "{what}: {name} is listed");
            assert!(!dir.join(name).exists(), "{what}: {name} is found");
        }
        // All names that still exist were listed.
        assert!(
            names.iter().filter(|name| dir.join(name).exists()).all(|name| listed.contains(name))
        );
    }
    ours.unmount();
    check(&bench.image());
}
