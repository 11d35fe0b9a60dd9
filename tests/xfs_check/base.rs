//! The undamaged volumes. The kernel fills them with every kind of metadata, and the tests damage copies of them.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, XattrFlags, fallocate, mknodat, setxattr};

use crate::common::command::run;
use crate::common::image::{Image, words};
use crate::common::rng::Rng;
use crate::common::skip::{self, Need};
use crate::common::xfsprogs;

/// The options to make a volume.
pub(crate) struct Recipe {
    name: &'static str,
    options: &'static str,
    /// Whether a newer xfsprogs than the installed one makes, damages and checks the volume.
    newer: bool,
}

const fn recipe(name: &'static str, options: &'static str) -> Recipe {
    Recipe { name, options, newer: false }
}

const fn newer(name: &'static str, options: &'static str) -> Recipe {
    Recipe { name, options, newer: true }
}

pub(crate) const BASES: [Recipe; 5] = [
    recipe("all trees", "-m rmapbt=1,reflink=1 -d agcount=2"),
    recipe("blocks of 1024", "-b size=1024 -n size=4096 -m rmapbt=1,reflink=1 -d agcount=3"),
    recipe("oldest v5", "-m finobt=0,reflink=0,bigtime=0,inobtcount=0 -i sparse=0"),
    newer("tree of metadata", "-m metadir=1,rmapbt=1,reflink=1 -n parent=1 -i exchange=1"),
    newer("parents, blocks of 1024", "-b size=1024 -n size=4096,parent=1 -d agcount=3"),
];

/// An undamaged volume.
pub(crate) struct Base {
    pub(crate) name: &'static str,
    pub(crate) tools: Tools,
    image: Image,
}

/// The programs of one xfsprogs version, installed or newer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tools {
    newer: bool,
}

impl Tools {
    pub(crate) const SYSTEM: Self = Self { newer: false };
    pub(crate) const NEWER: Self = Self { newer: true };

    pub(crate) fn is_newer(self) -> bool {
        self.newer
    }

    pub(crate) fn program(self, name: &str) -> String {
        if self.newer { xfsprogs::newer(name) } else { name.to_owned() }
    }

    /// The reason why these programs cannot be used on this machine, or why the kernel cannot mount the volumes that they make. `None` if
    /// there is no such reason.
    fn missing(self, options: &str) -> Option<String> {
        if !self.newer {
            return None;
        }
        let need = Need::Variable(xfsprogs::VARIABLE);
        need.missing().or_else(|| {
            let image = Image::mkfs_xfs_by(&self.program("mkfs.xfs"), "320M", &words(options));
            image.and_then(|image| image.try_mount("rw").map(drop)).err()
        })
    }
}

impl Base {
    /// Makes the undamaged volume. Returns `None` if this machine lacks a requirement.
    pub(crate) fn new(recipe: &Recipe) -> Option<Self> {
        let tools = Tools { newer: recipe.newer };
        if let Some(why) = tools.missing(recipe.options) {
            skip::note("xfs_check", &format!("{}: {}", recipe.name, why.replace('\n', " ")));
            return None;
        }
        let mkfs = tools.program("mkfs.xfs");
        let image = Image::mkfs_xfs_by(&mkfs, "320M", &words(recipe.options)).expect("a volume");
        let mount = image.mount("rw,noatime");
        fill(mount.dir(), !recipe.options.contains("reflink=0"));
        drop(mount);
        image.check_by(&tools.program("xfs_repair"));
        let ours = crate::verdict::ironmap(&image.path());
        assert!(ours.clean, "{}: {}", recipe.name, ours.text);
        Some(Self { name: recipe.name, tools, image })
    }

    pub(crate) fn file(&self) -> File {
        File::open(self.image.path()).expect("the base")
    }

    /// A copy of the image in a separate directory.
    pub(crate) fn copy(&self) -> Image {
        let copy = Image::no_xfs();
        self.copy_to(&copy.path());
        copy
    }

    pub(crate) fn copy_to(&self, path: &Path) {
        run("cp", &["--sparse=always".into(), self.image.path(), path.to_owned()]);
    }
}

/// Makes files of every kind. So the volume has every form of metadata.
fn fill(root: &Path, shares: bool) {
    let rng = &mut Rng::new(0xF111);
    for (name, count) in [("short", 3), ("block", 40), ("leaf", 300), ("nodes", 2500)] {
        let dir = root.join(name);
        fs::create_dir(&dir).unwrap();
        for number in 0..count {
            let path = dir.join(format!("name-{number:05}-{}", "x".repeat(number % 20)));
            match number % 40 {
                1 => fs::create_dir(&path).unwrap(),
                2 => symlink("target", &path).unwrap(),
                3 => {
                    let mode = Mode::from_raw_mode(0o600);
                    mknodat(CWD, &path, FileType::Fifo, mode, 0).unwrap();
                }
                4 => fs::hard_link(dir.join("name-00000-"), &path).unwrap(),
                _ => fs::write(&path, rng.bytes(1 + number % 9000)).unwrap(),
            }
        }
        // Some names are removed. So there are gaps in directories, in inode chunks and in free space.
        for number in (0..count).filter(|number| number % 7 == 5 && number % 40 > 4) {
            let name = format!("name-{number:05}-{}", "x".repeat(number % 20));
            fs::remove_file(dir.join(name)).unwrap();
        }
    }
    symlink("t".repeat(900), root.join("long-link")).unwrap();
    let fragments = |name: &str, count: u64| {
        let file = File::create_new(root.join(name)).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, count * 8192).unwrap();
        for number in 0..count {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, punch, number * 8192, 4096).unwrap();
        }
        file.write_all_at(&rng_bytes(40_000), 8192 * 3).unwrap();
    };
    fragments("many-extents", 900);
    fragments("few-extents", 4);
    if shares {
        let original = root.join("original");
        fs::write(&original, rng.bytes(400_000)).unwrap();
        for copy in ["copy-1", "copy-2", "copy-3"] {
            let path = root.join(copy);
            run("cp", &["--reflink=always".as_ref(), original.as_os_str(), path.as_os_str()]);
            let file = File::options().write(true).open(&path).unwrap();
            for _ in 0..6 {
                let at = rng.below(90) * 4096;
                file.write_all_at(&rng_bytes(4096), at).unwrap();
            }
        }
    }
    let attributes = |name: &str, count: usize, len: usize| {
        for number in 0..count {
            let attribute = format!("user.attribute-{number}");
            let value = vec![b'v'; len + number % 5];
            setxattr(root.join(name), attribute, &value, XattrFlags::empty()).unwrap();
        }
    };
    for (name, count, len) in
        [("a-short", 2, 10), ("a-leaf", 12, 60), ("a-nodes", 300, 90), ("a-remote", 4, 9000)]
    {
        File::create_new(root.join(name)).unwrap();
        attributes(name, count, len);
    }
    run("setfacl", &["-m".as_ref(), "u:1000:r,g:7:w".as_ref(), root.join("a-short").as_os_str()]);
}

fn rng_bytes(len: usize) -> Vec<u8> {
    Rng::new(len as u64).bytes(len)
}
