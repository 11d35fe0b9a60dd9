//! Damaged XFS volumes. mkfs.xfs makes the volumes, and the kernel or a prototype fills them. The checksums are repaired.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use arbitrary::Arbitrary;
use ironmap::Volume;
use ironmap::device::{BlockFile, Device, OpenMode, Psync};
use rustix::fd::AsRawFd;
use rustix::fs::{FallocateFlags, MemfdFlags, XattrFlags, fallocate, memfd_create, setxattr};

use crate::structures::{self, Kind, Structure};
use crate::visit::{seen, visit};

thread_local! {
    static VOLUMES: RefCell<Vec<Base>> = RefCell::new(Base::all());
}

/// The options of mkfs.xfs for the base volumes. The flag says whether the volume has a log to recover.
const MOUNTED: [(&str, bool); 4] = [
    ("-b size=1024 -n size=4096", false),
    ("-i size=1024 -m rmapbt=1", false),
    ("-b size=1024", true),
    ("-m rmapbt=1", true),
];
const BY_PROTOTYPE: [&str; 2] =
    ["-m crc=0 -b size=512", "-m crc=0,finobt=0 -n version=ci -b size=1024"];

/// A volume in memory, and the positions of its structures.
struct Base {
    file: File,
    structures: Vec<Structure>,
    device: Arc<dyn Device>,
}

/// The damage of one of the base volumes.
#[derive(Arbitrary, Debug)]
pub struct XfsDamage {
    base: u8,
    changes: Vec<Change>,
}

#[derive(Arbitrary, Debug)]
struct Change {
    /// The kind of the changed structure. `None` means any kind.
    kind: Option<u8>,
    structure: u16,
    offset: u16,
    value: Value,
    /// Whether the old checksum stays. This is rare: if the checksum is wrong, the code after its verification does not run.
    keeps_checksum: u8,
}

/// The bytes that a change writes. Integers are little-endian in items of the log, and big-endian everywhere else.
#[derive(Arbitrary, Debug)]
enum Value {
    Byte(u8),
    Half(u16),
    Word(u32),
    Little(u32),
    Flip(u8),
    Add(i8),
    Fill {
        word: u32,
        count: u8,
    },
    /// The position of another structure: its inode number if `inode` is set, or its block number.
    Place {
        structure: u16,
        inode: bool,
        wide: bool,
    },
    /// Bytes that are copied from another structure of the same kind.
    Copy {
        structure: u16,
        len: u8,
    },
    Extreme(u8),
}

const EXTREMES: [u32; 12] =
    [0, 1, 2, 0x7F, 0xFF, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, u32::MAX];

impl XfsDamage {
    /// Reads the damaged volume.
    pub fn survive(&self) {
        VOLUMES.with_borrow(|volumes| {
            let Some(base) = volumes.get(usize::from(self.base) % volumes.len().max(1)) else {
                return;
            };
            let mut saved = Vec::new();
            for change in self.changes.iter().take(16) {
                saved.extend(change.apply(base));
            }
            if let Some(volume) = seen(Volume::on(Arc::clone(&base.device))) {
                visit(&volume);
                // The check may have any result, but it must end.
                seen(volume.fs().check(&mut |_| {}));
            }
            for (at, bytes) in saved.into_iter().rev() {
                base.file.write_all_at(&bytes, at).unwrap();
            }
        });
    }
}

impl Change {
    /// Makes the change. Returns the position, and the original bytes of the structure.
    fn apply(&self, base: &Base) -> Option<(u64, Vec<u8>)> {
        let kind = self.kind.map(|kind| Kind::ALL[usize::from(kind) % Kind::ALL.len()]);
        let all = || base.structures.iter().filter(|it| kind.is_none_or(|kind| it.kind == kind));
        let pick = |number: u16| all().nth(usize::from(number) % all().count().max(1));
        let structure = pick(self.structure)?;
        let sound = structure.read(&base.file);
        let mut bytes = sound.clone();
        let offset = usize::from(self.offset);
        let near = if offset & 0x8000 == 0 { offset % 256 } else { offset & 0x7FFF };
        let at = near % bytes.len();
        let old = bytes[at];
        let value = match self.value {
            Value::Byte(byte) => vec![byte],
            Value::Half(half) => half.to_be_bytes().to_vec(),
            Value::Word(word) => word.to_be_bytes().to_vec(),
            Value::Little(word) => word.to_le_bytes().to_vec(),
            Value::Flip(bit) => vec![old ^ 1 << (bit % 8)],
            Value::Add(add) => vec![old.wrapping_add_signed(add)],
            Value::Fill { word, count } => word.to_be_bytes().repeat(usize::from(count) + 1),
            Value::Place { structure, inode, wide } => {
                let other = base.structures[usize::from(structure) % base.structures.len()];
                // Inode numbers of the first group. These small volumes have most of their inodes there.
                let unit = if inode { 512 } else { 1024 };
                let number = other.at / unit;
                if wide {
                    number.to_be_bytes().to_vec()
                } else {
                    (number as u32).to_be_bytes().to_vec()
                }
            }
            Value::Copy { structure: number, len } => {
                let like = pick(number)?.read(&base.file);
                let start = at.min(like.len() - 1);
                let end = (start + 1 + usize::from(len) * 4).min(like.len());
                like[start..end].to_vec()
            }
            Value::Extreme(index) => {
                let width = if index & 0x80 == 0 { 4 } else { 2 };
                let word = EXTREMES[usize::from(index & 0x7F) % EXTREMES.len()].to_be_bytes();
                word[4 - width..].to_vec()
            }
        };
        let from = if value.len() > 1 { at & !1 } else { at };
        let end = (from + value.len()).min(bytes.len());
        bytes[from..end].copy_from_slice(&value[..end - from]);
        if self.keeps_checksum != 0xFF {
            structure.repair(&mut bytes);
        }
        base.file.write_all_at(&bytes, structure.at).unwrap();
        Some((structure.at, sound))
    }
}

impl Base {
    /// All base volumes that can be made on this machine.
    fn all() -> Vec<Self> {
        let mut bases: Vec<_> =
            BY_PROTOTYPE.iter().filter_map(|options| Self::by_prototype(options)).collect();
        if rustix::process::geteuid().is_root() {
            bases.extend(MOUNTED.iter().map(|(options, dirty)| Self::mounted(options, *dirty)));
        }
        if bases.is_empty() {
            eprintln!("SKIP fuzz xfs: needs mkfs.xfs, and root for most volumes");
        }
        bases
    }

    fn mounted(options: &str, dirty: bool) -> Self {
        let dir = scratch();
        let (image, mount) = (dir.path().join("image"), dir.path().join("mnt"));
        assert!(mkfs(&image, options), "mkfs.xfs {options}");
        fs::create_dir(&mount).unwrap();
        run(Command::new("mount").args(["-o", "loop,noatime"]).arg(&image).arg(&mount));
        // The volume is unmounted even if an error occurred while it was filled.
        let unmount = Unmount(&mount);
        plant(&mount);
        if dirty {
            run(Command::new("sync").arg("-f").arg(&mount));
            change(&mount);
            run(Command::new("xfs_io").args(["-x", "-c", "shutdown -f"]).arg(&mount));
        }
        drop(unmount);
        Self::of(&image)
    }

    /// These volumes are filled without a mount, because current kernels do not mount version 4.
    fn by_prototype(options: &str) -> Option<Self> {
        let dir = scratch();
        let image = dir.path().join("image");
        let mut text = "/dev/null\n0 0\nd--755 0 0\n".to_owned();
        for (name, count) in [("short", 3), ("linear", 20), ("hashed", 300)] {
            text += &format!("{name} d--755 0 0\n");
            for number in 0..count {
                text += &format!("name-{number:020} p--644 0 0\n");
            }
            text += "$\n";
        }
        text += &format!("link l--777 0 0 short\nlong l--777 0 0 {}\n", "x".repeat(700));
        text += "map ---644 0 0 /proc/self/exe\n$\n";
        let prototype = dir.path().join("prototype");
        fs::write(&prototype, text).unwrap();
        if !mkfs(&image, &format!("{options} -p {}", prototype.display())) {
            return None;
        }
        let mut set = Command::new("xfs_db");
        set.args(["-x", "-c", "path /map"]);
        for (number, len) in [3, 60, 300, 2000].into_iter().cycle().take(40).enumerate() {
            set.args(["-c", &format!("attr_set -u -v {len} name-{number}")]);
        }
        run(set.arg(&image));
        Some(Self::of(&image))
    }

    /// A copy of the image in memory. Blocks of zeros become holes.
    fn of(image: &Path) -> Self {
        let file = File::from(memfd_create("xfs", MemfdFlags::CLOEXEC).unwrap());
        let bytes = fs::read(image).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        for (number, content) in bytes.chunks(4096).enumerate() {
            if content.iter().any(|byte| *byte != 0) {
                file.write_all_at(content, number as u64 * 4096).unwrap();
            }
        }
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let mode = OpenMode { direct: false, exclusive: false, ..OpenMode::default() };
        let device: Arc<dyn Device> =
            Arc::new(Psync::new(Arc::new(BlockFile::open(&path, &mode).unwrap())));
        let structures = structures::find(&file);
        let base = Self { file, structures, device };
        let volume = Volume::on(Arc::clone(&base.device)).expect("a sound volume");
        visit(&volume);
        base
    }
}

/// A directory whose name contains the process number. With it, `./x clean-up` can remove the directory.
fn scratch() -> tempfile::TempDir {
    let prefix = format!("ironmap-test-{}-", std::process::id());
    tempfile::Builder::new().prefix(&prefix).tempdir_in("/dev/shm").unwrap()
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let umount = || Command::new("umount").arg(self.0).output();
        (0..500).any(|_| umount().is_ok_and(|output| output.status.success()));
    }
}

/// Makes a volume with mkfs.xfs. Returns false if mkfs.xfs is not installed or fails.
fn mkfs(image: &Path, options: &str) -> bool {
    File::create(image).and_then(|file| file.set_len(32 << 20)).unwrap();
    let mut mkfs = command("mkfs.xfs");
    // With these variables set, mkfs.xfs makes small volumes.
    mkfs.envs([("QA_CHECK_FS", "1"), ("TEST_DIR", "1"), ("TEST_DEV", "1")]);
    mkfs.args(["-q", "-f"]).args(options.split(' ')).arg(image);
    mkfs.output().is_ok_and(|output| output.status.success())
}

fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
    command
}

fn run(what: &mut Command) {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = what.env("PATH", format!("{path}:/usr/sbin:/sbin")).output().unwrap();
    assert!(output.status.success(), "{what:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes directories, attributes, extent maps and links in every format.
fn plant(root: &Path) {
    let name = |name: &str| root.join(name);
    fs::write(name("one"), "content").unwrap();
    for (dir, count) in [("short", 3), ("linear", 20), ("middle", 150), ("hashed", 900)] {
        fs::create_dir(name(dir)).unwrap();
        for number in 0..count {
            fs::hard_link(name("one"), name(dir).join(format!("name-{number:020}"))).unwrap();
        }
    }
    for number in 0..40 {
        fs::write(name("linear").join(number.to_string()), b"content").unwrap();
    }
    symlink("short", name("link")).unwrap();
    symlink("x".repeat(900), name("long")).unwrap();
    let file = File::create(name("map")).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 600 * 4096).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    (0..300).for_each(|number| fallocate(&file, punch, number * 8192, 4096).unwrap());
    file.write_all_at(b"content", 4096).unwrap();
    for (file, count, len) in [("one", 3, 10), ("map", 60, 200), ("hashed", 4, 9000)] {
        for number in 0..count {
            let attribute = format!("user.attribute-{number}");
            setxattr(name(file), attribute, &vec![b'v'; len], XattrFlags::empty()).unwrap();
        }
    }
}

/// Makes changes that only the log contains.
fn change(root: &Path) {
    let name = |name: &str| root.join(name);
    fs::create_dir(name("created")).unwrap();
    for number in 0..70 {
        fs::write(name("created").join(format!("new-{number}")), b"").unwrap();
    }
    (0..30).for_each(|number| fs::remove_file(name("linear").join(number.to_string())).unwrap());
    fs::remove_file(name("long")).unwrap();
    for number in 0..20 {
        let attribute = format!("user.other-{number}");
        setxattr(name("short"), attribute, &[b'w'; 300], XattrFlags::empty()).unwrap();
    }
    fs::rename(name("created/new-1"), name("hashed/moved")).unwrap();
}
