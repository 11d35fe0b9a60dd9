//! Stores extreme and invalid values in every field of the superblock. Each superblock has one changed field and a valid checksum. ironmap
//! must open the volumes that the kernel mounts, and refuse the volumes that the kernel refuses. It must find the faults that xfs_repair
//! finds.
//!
//! `IRONMAP_FIELDS=all` tries all values. Without it, the test tries each required bit, and a sample of the other values.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Mutex;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::base::Tools;
use crate::common::command::run;
use crate::common::image::{Image, words};
use crate::common::loop_device::LoopDevice;
use crate::common::skip::Need;
use crate::common::xfsprogs;
use crate::sweep_cases::{Case, Sector, cases};
use crate::sweep_exceptions::{Exception, NOT_BUILT_IN, NOT_FOUND, READ, REFUSED, reason};
use crate::verdict::{ironmap, repair};
use crate::{note, require};

/// The default number of values in a sample.
const SAMPLE: usize = 30;
/// The number of changed superblocks that are tested at the same time.
const THREADS: usize = 2;

/// Two copies of the volume. For each case, the superblocks of both copies are changed. One copy is for ironmap and xfs_repair, because
/// they may refuse an image that is attached to a loop device. The other copy is for the kernel, on a read-only device. A mount does not
/// change this copy. If the kernel would only refuse to write the volume, the mount still succeeds.
struct Place {
    image: Image,
    mounted: Image,
    device: LoopDevice,
    dir: PathBuf,
}

impl Place {
    fn new(base: &Image) -> Self {
        let [image, mounted] = [Image::no_xfs(), Image::no_xfs()];
        for copy in [&image, &mounted] {
            run("cp", &["--sparse=always".into(), base.path(), copy.path()]);
        }
        let device = LoopDevice::with(&["--read-only"], mounted.path());
        let dir = mounted.beside("mnt");
        std::fs::create_dir(&dir).expect("a mount point");
        Self { image, mounted, device, dir }
    }

    /// Whether the kernel can mount the volume read-only and list its root. The kernel mounts only one volume with the same UUID at a time.
    fn kernel_mounts(&self) -> bool {
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock();
        if mount(self.device.node(), &self.dir, "xfs", MountFlags::RDONLY, None).is_err() {
            return false;
        }
        let lists = std::fs::read_dir(&self.dir).is_ok_and(|mut all| all.all(|one| one.is_ok()));
        unmount(&self.dir, UnmountFlags::empty()).expect("unmount");
        lists
    }

    /// The differences between the programs for one superblock that no exception permits.
    fn faults(&self, tools: Tools, sound: &Sector, case: &Case) -> Vec<String> {
        for image in [&self.image, &self.mounted] {
            let file = File::options().write(true).open(image.path()).expect("the copy");
            file.write_all_at(&case.sector, 0).expect("write the superblock");
        }
        let path = self.image.path();
        let (ours, checked) = (opens(&self.image), ironmap(&path));
        let mut faults = compare(sound, case, (&ours, self.kernel_mounts()), NOT_BUILT_IN);
        if checked.clean {
            let theirs = repair(&path, tools);
            let found = format!("xfs_repair finds: {}", theirs.text);
            faults.extend(
                (!theirs.clean)
                    .then_some((NOT_FOUND, found))
                    .and_then(|found| judged(sound, case, found)),
            );
        }
        faults
    }
}

/// Opens the volume, and lists its root. If ironmap reads the volume by a copy of the superblock, it has refused the first superblock. This
/// counts as a refusal of the volume.
pub(crate) fn opens(image: &Image) -> ironmap::Result<()> {
    let volume = image.open()?;
    let notices = volume.fs().take_notices();
    if let Some(refused) = notices.into_iter().find(|it| it.starts_with("the first superblock")) {
        return Err(ironmap::Error::new(ironmap::ErrorKind::Corrupt, refused));
    }
    let root = volume.fs().inode(volume.fs().root())?;
    root.read_dir()?.try_for_each(|entry| entry.map(drop))
}

/// The difference between ironmap and a kernel for one superblock. `None` if an exception permits the difference, or if the build options
/// of the kernel explain it.
pub(crate) fn compare(
    sound: &Sector,
    case: &Case,
    (ours, mounts): (&ironmap::Result<()>, bool),
    of_kernel: &[Exception],
) -> Vec<String> {
    let (list, how) = match (ours, mounts) {
        (Ok(()), false) => (READ, "Linux refuses it".to_owned()),
        (Err(error), true) => (REFUSED, format!("Linux mounts it: {error}")),
        _ => return Vec::new(),
    };
    let list = if reason(of_kernel, sound, case).is_some() { of_kernel } else { list };
    judged(sound, case, (list, how)).into_iter().collect()
}

fn judged(sound: &Sector, case: &Case, (list, how): (&[Exception], String)) -> Option<String> {
    let reason = reason(list, sound, case);
    let mark = if reason.is_some() { "" } else { "--- " };
    println!("{mark}{case}: {how}: {}", reason.unwrap_or("differs"));
    reason.is_none().then(|| format!("{case}: {how}"))
}

pub(crate) fn superblock(image: &Image) -> Sector {
    let mut sector = [0; 512];
    let file = File::open(image.path()).expect("the image");
    file.read_exact_at(&mut sector, 0).expect("its superblock");
    sector
}

#[test]
fn fields_of_the_superblock_are_judged_as_by_linux() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_repair")]);
    sweep(Tools::SYSTEM, "-s size=512 -m rmapbt=1");
}

/// The test of all superblock fields, for volumes with metadata directories. Their superblock has additional fields.
#[test]
fn fields_of_the_superblock_with_metadata_directories() {
    require!([Need::Root, Need::Variable(xfsprogs::VARIABLE)]);
    sweep(Tools::NEWER, "-s size=512 -m metadir=1");
}

fn sweep(tools: Tools, options: &str) {
    let base = Image::mkfs_xfs_by(&tools.program("mkfs.xfs"), "320M", &words(options)).unwrap();
    match base.try_mount("rw") {
        Ok(mount) => drop(mount),
        Err(refusal) => return note(&refusal),
    }
    let sound = superblock(&base);
    let rest = Mutex::new(cases(&sound, SAMPLE));
    let faults = Mutex::new(Vec::new());
    let work = || {
        let place = Place::new(&base);
        let next = || rest.lock().unwrap().pop();
        while let Some(case) = next() {
            let found = place.faults(tools, &sound, &case);
            faults.lock().unwrap().extend(found);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{} differ: {faults:#?}", faults.len());
}
