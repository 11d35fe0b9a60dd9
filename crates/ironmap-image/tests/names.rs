//! Tests that build images under names that other programs use at the same time, and under names at the limits of the host.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Barrier};

use ironmap_image::progress::{Bar, Total};
use ironmap_image::{Failure, Image};

const MIB: u64 = 1 << 20;
/// `PATH_MAX` of Linux, including the terminating zero.
const PATH_MAX: usize = 4096;
const NAME_MAX: usize = 255;

/// The ways in which an image gets its size.
const SIZES: [fn(Image) -> Image; 3] = [|image| image.size(16 * MIB), Image::fit, Image::shrink];

/// Makes a directory with one file, which has this content.
fn tree(dir: &Path, content: &str) -> PathBuf {
    let tree = dir.join(content);
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), content.repeat(100_000)).unwrap();
    tree
}

fn names(dir: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(dir).unwrap();
    names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Asserts that e2fsck finds nothing, and that the file has this content.
fn assert_whole(image: &Path, contents: &[&str]) {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let checked = Command::new("e2fsck").arg("-fn").arg(image).env("PATH", path).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    let volume = Image::open(image).unwrap().volume().unwrap();
    let found = volume.read("/file").unwrap();
    let is_one = |content: &&str| found == content.repeat(100_000).into_bytes();
    assert!(contents.iter().any(is_one), "the content is of no builder");
}

fn assert_one_line(failure: &Failure, part: &str) {
    let text = failure.to_string();
    assert!(!text.contains('\n') && text.contains(part), "{text}");
    assert!(!text.contains(".ironmap-"), "the temporary name is in the message: {text}");
}

/// Renames a file over a path when the copy begins.
struct Renaming(PathBuf, PathBuf);

impl Bar for Renaming {
    fn begin(&self, _: &str) {
        fs::rename(&self.0, &self.1).ok();
    }
    fn advance(&self, _: u64) {}
    fn add_file(&self) {}
    fn set_total(&self, _: Total) {}
    fn finish(&self) {}
}

/// Another program renames its file over the path of an image while the image is built. The build then fails, and removes the incomplete
/// image. The file of the other program stays unchanged.
#[test]
fn a_file_that_is_renamed_over_the_image_stays() {
    for sized in SIZES {
        let dir = tempfile::tempdir().unwrap();
        let (tree, other) = (tree(dir.path(), "tree"), dir.path().join("other"));
        fs::write(&other, "mine").unwrap();
        let image = dir.path().join("disk.img");
        let bar = Arc::new(Renaming(other, image.clone()));
        let failure = sized(Image::ext4().add(&tree)).progress(bar).build(&image).unwrap_err();
        assert_one_line(&failure, "disk.img: another program has replaced the image");
        assert_eq!(fs::read(&image).unwrap(), b"mine");
        assert_eq!(names(dir.path()), ["disk.img", "tree"].map(String::from).into());
    }
}

/// After two builds of one path at the same time, the path names one complete image, and no other file remains. A build that fails reports
/// the reason.
#[test]
fn two_builds_of_one_path_leave_one_whole_image() {
    for sized in SIZES {
        let dir = tempfile::tempdir().unwrap();
        let trees = ["one", "two"].map(|content| tree(dir.path(), content));
        let image = dir.path().join("disk.img");
        for _ in 0..8 {
            let both = Barrier::new(2);
            let built = std::thread::scope(|scope| {
                let build = |tree| {
                    let (image, both) = (&image, &both);
                    scope.spawn(move || {
                        both.wait();
                        sized(Image::ext4().add(tree)).build(image).map(drop)
                    })
                };
                trees.each_ref().map(build).map(|thread| thread.join().unwrap())
            });
            let failures: Vec<_> = built.iter().filter_map(|built| built.as_ref().err()).collect();
            assert!(failures.len() == 1, "{failures:?}");
            failures.iter().for_each(|failure| assert_one_line(failure, "disk.img: "));
            assert_whole(&image, &["one", "two"]);
            assert_eq!(names(dir.path()), ["disk.img", "one", "two"].map(String::from).into());
            fs::remove_file(&image).unwrap();
        }
    }
}

/// If the host refuses a name, the build fails with one line, and makes no file. With the longest name and the longest path that the host
/// accepts, the build makes an image.
#[test]
fn the_longest_names_are_built_and_longer_names_are_errors() {
    for sized in SIZES {
        let dir = tempfile::tempdir().unwrap();
        let source = tree(dir.path(), "tree");
        let build = |image: &Path| sized(Image::ext4().add(&source)).build(image).map(drop);

        let long = dir.path().join("long");
        fs::create_dir(&long).unwrap();
        let longest = long.join("n".repeat(NAME_MAX));
        build(&longest).unwrap();
        assert_whole(&longest, &["tree"]);
        assert_one_line(&build(&long.join("n".repeat(NAME_MAX + 1))).unwrap_err(), "too long");
        assert_one_line(&build(&dir.path().join("/n".repeat(PATH_MAX))).unwrap_err(), "n");
        let dots = long.join("./".repeat(PATH_MAX)).join("disk.img");
        assert_one_line(&build(&dots).unwrap_err(), "too long");
        assert_eq!(names(&long), ["n".repeat(NAME_MAX)].into());

        // The path of the image is so long that a temporary name in the same directory would exceed `PATH_MAX`.
        let mut deep = dir.path().to_owned();
        while deep.as_os_str().len() + 200 + 8 < PATH_MAX {
            deep.push("d".repeat(200));
        }
        let rest = PATH_MAX - 1 - deep.as_os_str().len() - "/".len() - "/i".len();
        deep.push("d".repeat(rest));
        fs::create_dir_all(&deep).unwrap();
        let image = deep.join("i");
        assert_eq!(image.as_os_str().len(), PATH_MAX - 1);
        build(&image).unwrap();
        assert_whole(&image, &["tree"]);
        assert_eq!(names(&deep), ["i".to_owned()].into());
    }
}
