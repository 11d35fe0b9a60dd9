//! Copies trees of installed programs and documents: ten thousand files that no test generated.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::common::command::run;
use crate::common::compare::{assert_contents, assert_same};
use crate::common::image::Image;
use crate::common::kernel;
use crate::common::reads::Depth;
use crate::common::skip::{Need, note};
use crate::common::view::Subject;
use crate::{SEED, require};

const FILES: u64 = 10_000;
const BYTES: u64 = 1 << 30;

#[test]
fn usr_is_the_same_through_the_kernel() {
    require!([Need::Root]);
    let (trees, files) = choose(Path::new("/usr"));
    if files < FILES {
        return note(
            "real_tree::usr_is_the_same_through_the_kernel",
            "/usr holds fewer than 10,000 files",
        );
    }
    let image = Image::mke2fs("3G", &["-t", "ext4"]);
    let mount = image.mount("rw");
    for tree in &trees {
        let to = mount.dir().join(tree.strip_prefix("/").expect("absolute"));
        std::fs::create_dir_all(to.parent().expect("a parent")).expect("directories");
        run("cp", &["-a".as_ref(), tree.as_os_str(), to.as_os_str()]);
    }
    drop(mount);

    let depth = Depth { random: 2, stretches: 1000 };
    let expected = kernel::view_with_maps(image.mount("ro,noload").dir(), depth, SEED);
    let regular = expected.values().filter(|record| !record.reads.is_empty()).count() as u64;
    assert!(regular >= FILES / 2, "{regular} files with content");
    assert!(expected.len() as u64 >= FILES, "{} paths", expected.len());
    let mut subject = Subject::open(&image);
    let actual = subject.view();
    assert_same(&expected, &actual, "/usr");
    assert_contents(&expected, &mut subject, &actual, "/usr");
}

/// Chooses trees below a directory. Together they have enough files, and at most the maximum number of bytes. Returns the trees and their
/// number of files.
fn choose(root: &Path) -> (Vec<PathBuf>, u64) {
    let mut trees: Vec<_> = ["lib", "include", "share", "lib/x86_64-linux-gnu", "bin", "sbin"]
        .iter()
        .flat_map(|dir| std::fs::read_dir(root.join(dir)).into_iter().flatten().flatten())
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| (measure(&entry.path()), entry.path()))
        .collect();
    // Small trees are chosen first, so that files of many packages are included.
    trees.sort();
    let (mut files, mut bytes) = (0, 0);
    let mut chosen: Vec<PathBuf> = Vec::new();
    for ((tree_bytes, tree_files), path) in trees {
        let nested = chosen.iter().any(|other| path.starts_with(other) || other.starts_with(&path));
        if nested || bytes + tree_bytes > BYTES || files > FILES + FILES / 2 {
            continue;
        }
        files += tree_files;
        bytes += tree_bytes;
        chosen.push(path);
    }
    (chosen, files)
}

/// The bytes and files of a tree. Symbolic links are not followed.
fn measure(path: &Path) -> (u64, u64) {
    let Ok(stat) = path.symlink_metadata() else { return (0, 0) };
    if !stat.is_dir() {
        return (stat.blocks() * 512, 1);
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .map(|entry| measure(&entry.path()))
        .fold((0, 1), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}
