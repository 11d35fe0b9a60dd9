//! The test of the superblock's fields with other kernels, which run in a virtual machine. The volumes have version 4, case-insensitive
//! names, or realtime devices. The kernel of this machine possibly does not support such volumes.
//!
//! By default, the test tries a sample of values for each volume, with the kernel of the Debian release. `IRONMAP_FIELDS=all` tries all
//! values, with this kernel and with the newest packaged kernel.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use tempfile::TempDir;

use crate::base::Tools;
use crate::common::command::run;
use crate::common::image::{Image, scratch, words};
use crate::common::skip::Need;
use crate::common::xfsprogs;
use crate::sweep::{compare, opens, superblock};
use crate::sweep_cases::{Case, Sector, all, cases};
use crate::{note, require};

/// The default number of values in the sample for each volume.
const SAMPLE: usize = 6;
/// The lowest namespace number that the virtual machine does not use.
const FIRST: usize = 7;
/// The number of virtual machines that run at the same time.
const THREADS: usize = 2;
/// The time limit of a virtual machine, in seconds.
const SECONDS: &str = "7200";
const UNAVAILABLE: i32 = 77;

/// A kind of volume.
struct Kind {
    name: &'static str,
    tools: Tools,
    mkfs: &'static str,
    has_realtime: bool,
}

const fn kind(name: &'static str, mkfs: &'static str) -> Kind {
    Kind { name, tools: Tools::SYSTEM, mkfs, has_realtime: false }
}

const fn with_realtime(name: &'static str, tools: Tools, mkfs: &'static str) -> Kind {
    Kind { name, tools, mkfs, has_realtime: true }
}

const KINDS: [Kind; 8] = [
    kind("v4", "-m crc=0 -s size=512"),
    kind("v4-oldest", "-m crc=0 -l version=1 -i attr=1 -n ftype=0 -s size=512"),
    kind("ascii-ci", "-n version=ci -s size=512"),
    kind("v5", "-m rmapbt=1 -s size=512"),
    with_realtime("realtime", Tools::SYSTEM, "-m reflink=0,rmapbt=0 -s size=512"),
    with_realtime("v4-realtime", Tools::SYSTEM, "-m crc=0 -s size=512"),
    with_realtime("groups", Tools::NEWER, "-m metadir=1 -r rgsize=16m -s size=512"),
    with_realtime("zones", Tools::NEWER, "-r zoned=1,rgsize=8m -s size=512"),
];

struct Volume {
    kind: &'static Kind,
    image: Image,
    realtime: Option<PathBuf>,
    _dir: TempDir,
    sound: Sector,
    cases: Vec<Case>,
}

impl Volume {
    /// Makes the volume. Returns `None` if the tools are missing.
    fn new(kind: &'static Kind) -> Option<Self> {
        let newer = Need::Variable(xfsprogs::VARIABLE);
        if let Some(why) = newer.missing().filter(|_| kind.tools.is_newer()) {
            note(&format!("{}: {why}", kind.name));
            return None;
        }
        let dir = scratch();
        let realtime = kind.has_realtime.then(|| dir.path().join("realtime"));
        let mut options: Vec<String> = words(kind.mkfs).into_iter().map(str::to_owned).collect();
        if let Some(device) = &realtime {
            run("truncate", &["-s".as_ref(), "64M".as_ref(), device.as_os_str()]);
            options.extend(["-r".to_owned(), format!("rtdev={}", device.display())]);
        }
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        let image = Image::mkfs_xfs_by(&kind.tools.program("mkfs.xfs"), "320M", &options).unwrap();
        let sound = superblock(&image);
        opens(&image).unwrap();
        Some(Self { kind, image, realtime, _dir: dir, cases: cases(&sound, SAMPLE), sound })
    }
}

/// Boots a virtual machine with these volumes. Returns its verdicts on their superblocks. Returns `None` if no virtual machine is
/// available.
fn boot(volumes: &[Volume], kernel: &Path) -> Option<String> {
    let files = scratch();
    let (mut list, mut disks) = (String::new(), Vec::new());
    for Volume { kind, image, realtime, cases, .. } in volumes {
        let sectors: Vec<_> = cases.iter().flat_map(|case| case.sector).collect();
        std::fs::write(files.path().join(kind.name), sectors).unwrap();
        let mut disk = |path: &Path| {
            disks.push(path.to_str().expect("a plain path").to_owned());
            (FIRST + disks.len() - 1).to_string()
        };
        let own = disk(&image.path());
        let other = realtime.as_deref().map_or("-".to_owned(), disk);
        list += &format!("{} {own} {other}\n", kind.name);
    }
    std::fs::write(files.path().join("list"), list).unwrap();
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/boot.sh");
    let mut command = Command::new(lab);
    command.arg("fields.sh").env("LAB_FILES", files.path()).env("LAB_DISKS", disks.join(" "));
    command.env("LAB_KERNEL", kernel).env("LAB_SECONDS", SECONDS);
    command.env("LAB_CONSOLE", files.path().join("console"));
    let output = command.output().expect("the lab's script");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.code() == Some(UNAVAILABLE) {
        note(text.lines().last().unwrap_or_default());
        return None;
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}{errors}", output.status);
    Some(text)
}

impl Volume {
    /// The differences in the output of a virtual machine. Permitted differences are omitted.
    fn faults(&self, said: &str) -> Vec<String> {
        let name = self.kind.name;
        let own = |line: &str| {
            Some(
                line.strip_prefix("lab: fields ")?
                    .strip_prefix(name)?
                    .strip_prefix(' ')?
                    .to_owned(),
            )
        };
        let verdicts: Vec<_> = said.lines().filter_map(own).collect();
        if verdicts == ["not mounted"] {
            note(&format!("{name}: this kernel does not mount it"));
            return Vec::new();
        }
        assert_eq!(verdicts.len(), self.cases.len(), "{name}: verdicts: {said}");
        let file = File::options().write(true).open(self.image.path()).expect("the image");
        let each = |(case, verdict): (&Case, &String)| {
            file.write_all_at(&case.sector, 0).expect("write the superblock");
            {
                let seen = (&opens(&self.image), verdict.ends_with("mounted"));
                compare(&self.sound, case, seen, &[])
            }
        };
        let faults: Vec<_> = self.cases.iter().zip(&verdicts).flat_map(each).collect();
        file.write_all_at(&self.sound, 0).expect("write the superblock");
        let mounted = verdicts.iter().filter(|verdict| verdict.ends_with("mounted")).count();
        println!("{name}: {} superblocks, {mounted} of them mounted", verdicts.len());
        faults.into_iter().map(|fault| format!("{name}: {fault}")).collect()
    }
}

/// Debian's kernels refuse the same volumes as ironmap. The test uses a virtual machine, because the kernel of this machine possibly does
/// not support some of these volumes.
#[test]
fn fields_are_judged_as_in_the_lab() {
    require!([Need::Tool("mkfs.xfs"), Need::Tool("qemu-system-x86_64")]);
    let volumes: Vec<_> = KINDS.iter().filter_map(Volume::new).collect();
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target"), PathBuf::from);
    // The empty path stands for the newest kernel.
    let kernels = [target.join("lab/kernel"), PathBuf::new()];
    let count = if std::env::var_os("IRONMAP_FIELDS").is_some() { kernels.len() } else { 1 };
    let mut faults = Vec::new();
    for kernel in &kernels[..count] {
        // One virtual machine does not have enough time for all values of all volumes. So several are used.
        let parts = volumes.chunks(if all() { 1 } else { volumes.len() });
        let rest = Mutex::new(parts.collect::<Vec<_>>());
        let found = Mutex::new(Vec::new());
        let next = || rest.lock().unwrap().pop();
        let work = || {
            while let Some(part) = next() {
                let Some(said) = boot(part, kernel) else { return };
                let named = said.lines().find(|line| line.starts_with("lab: Linux"));
                println!("{}", named.unwrap_or_default());
                found.lock().unwrap().extend(part.iter().flat_map(|volume| volume.faults(&said)));
            }
        };
        std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
        faults.extend(found.into_inner().unwrap());
    }
    assert!(faults.is_empty(), "{} differ: {faults:#?}", faults.len());
}
