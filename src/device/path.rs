//! A block device can be accessed through several device paths. This module finds the device paths to the block device beneath a mounted
//! file system, and chooses one of them.
//!
//! For a direct read of a block device, the kernel first checks the page cache of this device. The read takes longer if the cache contains
//! any page, and still longer if a page is dirty. When an ext4 volume is mounted, the page cache of its device contains the metadata of the
//! file system. The disk of a partition has a separate page cache. An NVMe character device has no page cache.
//!
//! Device paths that can be opened are considered in the order of [`DevicePathKind`]. The first path whose page cache is empty is chosen.
//! If no page cache is empty, the first path whose page cache contains no dirty page is chosen. If all page caches contain dirty pages, the
//! first path is chosen.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::fs::Advice;

use super::nvme::Namespace;
use super::{BlockFile, OpenMode};
use crate::error::{Errno, Error, ErrorKind, Result};
use crate::sorting::Sorting;
pub use crate::sys::PageCache;

/// The unit of `start` and `size` in sysfs, for every block size of a device.
const SYSFS_SECTOR: u64 = 512;

/// The kind of a device path. The best kind comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DevicePathKind {
    /// The character device of an NVMe namespace, which accepts NVMe commands and has no page cache.
    NvmeChar,
    /// The disk beneath the file system's partition. Its page cache contains only pages that programs have read from the disk itself
    /// (blkid, fdisk).
    WholeDisk,
    /// The block device that contains the file system. Its page cache may contain the file system's metadata.
    FileSystem,
}

impl DevicePathKind {
    /// The name of the kind in the program's output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NvmeChar => "nvme_char",
            Self::WholeDisk => "whole_disk",
            Self::FileSystem => "file_system",
        }
    }
}

impl fmt::Display for DevicePathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NvmeChar => "NVMe character device",
            Self::WholeDisk => "whole disk",
            Self::FileSystem => "file system's device",
        })
    }
}

/// A path to the block device beneath a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePath {
    /// The device node in /dev. It may be missing.
    pub path: PathBuf,
    /// The major and minor number that the node must have.
    pub node: (u32, u32),
    /// The kind of the path.
    pub kind: DevicePathKind,
    /// The position of the file system's first byte on this path's device.
    pub base: u64,
    /// The size in bytes of the block device that contains the file system.
    pub size: u64,
}

impl fmt::Display for DevicePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.path.display(), self.kind)
    }
}

/// Returns the device paths to the block device of a file system, best first. `dev` identifies the file system: it is the `st_dev` of all
/// of its files.
///
/// # Errors
/// `Unsupported` if the file system has no block device of its own (btrfs, overlayfs, tmpfs, NFS); `Io` if sysfs does not list it;
/// `Corrupt` if values in sysfs contradict each other.
pub fn device_paths(dev: (u32, u32)) -> Result<Vec<DevicePath>> {
    device_paths_in(Path::new("/sys"), dev)
}

fn device_paths_in(sysfs: &Path, (major, minor): (u32, u32)) -> Result<Vec<DevicePath>> {
    if major == 0 {
        return Err(Error::unsupported(format!(
            "device {major}:{minor} is not a block device: the file system has no block device, or several"
        )));
    }
    let own = canonical(&sysfs.join(format!("dev/block/{major}:{minor}")))?;
    let size = bytes(&own, "size")?;
    let mut device_paths = vec![device_path(&own, DevicePathKind::FileSystem, 0, size)?];
    // A partition has its blocks in the same order as the device below. Loop, dm and md devices may map blocks in other ways, so the
    // devices below them are not device paths.
    let (disk, base) = if own.join("partition").exists() {
        let disk = own.parent().unwrap_or(&own).to_owned();
        let base = bytes(&own, "start")?;
        if base.checked_add(size).is_none_or(|end| end > bytes(&disk, "size").unwrap_or(0)) {
            let what = "the partition extends past the end of its disk";
            return Err(Error::new(ErrorKind::Corrupt, what).at(own.display()));
        }
        device_paths.push(device_path(&disk, DevicePathKind::WholeDisk, base, size)?);
        (disk, base)
    } else {
        (own, 0)
    };
    if let Some(generic) = nvme_generic(sysfs, &disk) {
        device_paths.push(device_path(&generic, DevicePathKind::NvmeChar, base, size)?);
    }
    device_paths.order_by_key(|device_path| device_path.kind);
    Ok(device_paths)
}

/// Returns the character device of a disk that is an NVMe namespace: `ng0n1` for `nvme0n1`. The disk and the character device must belong
/// to the same controller or, with multipath, to the same subsystem. The individual paths of a multipath namespace, for example
/// `nvme0c1n1`, contain no file system.
fn nvme_generic(sysfs: &Path, disk: &Path) -> Option<PathBuf> {
    let numbers = disk.file_name()?.to_str()?.strip_prefix("nvme")?;
    let (instance, namespace) = numbers.split_once('n')?;
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !number(instance) || !number(namespace) {
        return None;
    }
    let generic = canonical(&sysfs.join(format!("class/nvme-generic/ng{numbers}"))).ok()?;
    let above = |dir: &Path| canonical(&dir.join("device")).ok();
    (above(&generic)? == above(disk)?).then_some(generic)
}

/// Creates the device path for the device that a directory in sysfs describes.
fn device_path(dir: &Path, kind: DevicePathKind, base: u64, size: u64) -> Result<DevicePath> {
    let uevent = text(dir, "uevent")?;
    let value = |key: &str| {
        let mut fields = uevent.lines().filter_map(|line| line.split_once('='));
        fields.find(|(name, _)| *name == key).map(|(_, value)| value)
    };
    let number = |key: &str| value(key)?.parse().ok();
    match (value("DEVNAME"), number("MAJOR"), number("MINOR")) {
        (Some(name), Some(major), Some(minor)) => {
            let path = Path::new("/dev").join(name);
            Ok(DevicePath { path, node: (major, minor), kind, base, size })
        }
        _ => Err(Error::new(ErrorKind::Corrupt, "the uevent file has no DEVNAME, MAJOR or MINOR")
            .at(dir.display())),
    }
}

fn canonical(path: &Path) -> Result<PathBuf> {
    std::fs::canonicalize(path).map_err(|error| io(&error, path))
}

fn text(dir: &Path, name: &str) -> Result<String> {
    let path = dir.join(name);
    std::fs::read_to_string(&path).map_err(|error| io(&error, &path))
}

/// Converts a number of sectors in sysfs to bytes.
fn bytes(dir: &Path, name: &str) -> Result<u64> {
    let sectors = text(dir, name)?;
    let bytes =
        sectors.trim().parse().ok().and_then(|sectors: u64| sectors.checked_mul(SYSFS_SECTOR));
    bytes.ok_or_else(|| {
        let what = format!("{name} is {:?}", sectors.trim());
        Error::new(ErrorKind::Corrupt, what).at(dir.display())
    })
}

fn io(error: &std::io::Error, path: &Path) -> Error {
    let errno = error.raw_os_error().map_or(Errno::EIO, Errno);
    Error::io(errno, path.display().to_string())
}

impl DevicePath {
    /// Opens the device for direct reads of the part that contains the file system, and counts the pages in the device's page cache. An
    /// NVMe character device has no page cache. The cached pages of a whole disk are first dropped: no program needs these pages, but the
    /// kernel keeps them while a partition of the disk is mounted.
    ///
    /// # Errors
    /// `Io` with the path; `InvalidInput` if the node belongs to another device, or if direct reads of this part are impossible;
    /// `Unsupported` for an NVMe namespace with metadata.
    pub fn open(&self) -> Result<(BlockFile, Option<PageCache>)> {
        let window = Some((self.base, self.size));
        let mode = OpenMode { exclusive: false, window, ..OpenMode::default() };
        let file = BlockFile::open(&self.path, &mode)?;
        let path = || self.path.display();
        if file.protected_namespace().is_some() {
            let what = "each NVMe command must carry protection information, which only the block device supports";
            return Err(Error::unsupported(what).at(path()));
        }
        let node = file.namespace().map_or(file.fd(), Namespace::fd);
        let stat = rustix::fs::fstat(node).map_err(|errno| Error::io(errno, "").at(path()))?;
        if (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) != self.node {
            let (major, minor) = self.node;
            return Err(Error::invalid(format!(
                "the path does not name the device {major}:{minor}"
            ))
            .at(path()));
        }
        if !file.limits().direct {
            let why = file.notice().unwrap_or_default();
            return Err(Error::invalid(format!("direct reads are not possible: {why}")).at(path()));
        }
        if file.namespace().is_some() {
            return Ok((file, Some(PageCache { pages: 0, dirty: 0 })));
        }
        let mut cache = PageCache::of(file.fd());
        if self.kind == DevicePathKind::WholeDisk && cache.is_some_and(|cache| cache.pages > 0) {
            let dropped = rustix::fs::fadvise(file.fd(), 0, None, Advice::DontNeed);
            dropped.map_err(|errno| Error::io(errno, "").at(path()))?;
            cache = PageCache::of(file.fd());
        }
        Ok((file, cache))
    }
}

/// A device path that was tried, with the result.
#[derive(Debug)]
pub struct Candidate {
    /// The device path.
    pub device_path: DevicePath,
    /// The number of pages in the page cache of the path's device, or the error of the open. `None` if the kernel does not count the pages.
    pub found: Result<Option<PageCache>>,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.device_path)?;
        match &self.found {
            Ok(Some(PageCache { pages: 0, .. })) => f.write_str("no cached pages"),
            Ok(Some(PageCache { pages, dirty })) => {
                write!(f, "{pages} cached pages, {dirty} dirty")
            }
            Ok(None) => f.write_str("opened, number of cached pages unknown"),
            Err(error) => write!(f, "{error}"),
        }
    }
}

/// The reason why a device path was chosen, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The chosen path is the first whose page cache is empty.
    Empty,
    /// No page cache is empty. The chosen path is the first without dirty pages.
    Clean,
    /// All paths have dirty pages, or the kernel does not count the pages. The chosen path is the first that can be opened.
    First,
}

impl Reason {
    /// Returns the reason to choose a device path whose page cache contains these pages.
    fn of(cache: Option<PageCache>) -> Self {
        match cache {
            Some(PageCache { pages: 0, .. }) => Self::Empty,
            Some(PageCache { dirty: 0, .. }) => Self::Clean,
            _ => Self::First,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the first device path without cached pages",
            Self::Clean => "the first device path without dirty pages; all have cached pages",
            Self::First => "the first device path that can be opened",
        })
    }
}

/// The device path that was chosen.
#[derive(Debug)]
pub struct Chosen<T> {
    /// The index of the chosen candidate.
    pub index: usize,
    /// The result of opening the chosen path.
    pub device: T,
    /// The reason for the choice.
    pub reason: Reason,
}

/// All device paths with their page caches, and the chosen path. `Display` shows them on one line.
#[derive(Debug)]
pub struct Choice<T> {
    /// All device paths, best first.
    pub candidates: Vec<Candidate>,
    /// The chosen device path; `None` if no path can be opened.
    pub chosen: Option<Chosen<T>>,
}

impl<T> fmt::Display for Choice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chosen = self.chosen.as_ref();
        match chosen.and_then(|chosen| Some((self.candidates.get(chosen.index)?, chosen.reason))) {
            Some((candidate, reason)) => write!(f, "{}, {reason}", candidate.device_path)?,
            None => f.write_str("no device path can be opened")?,
        }
        let others = self.candidates.iter().enumerate();
        others
            .filter(|(index, _)| chosen.is_none_or(|chosen| chosen.index != *index))
            .try_for_each(|(_, candidate)| write!(f, "; {candidate}"))
    }
}

/// Tries each device path with `open`, for example [`DevicePath::open`], and chooses one. The module documentation states the rule.
pub fn choose<T>(
    device_paths: Vec<DevicePath>,
    mut open: impl FnMut(&DevicePath) -> Result<(T, Option<PageCache>)>,
) -> Choice<T> {
    let mut candidates = Vec::with_capacity(device_paths.len());
    let mut chosen: Option<Chosen<T>> = None;
    for (index, device_path) in device_paths.into_iter().enumerate() {
        let found = open(&device_path).map(|(device, cache)| {
            let reason = Reason::of(cache);
            if chosen.as_ref().is_none_or(|best| reason < best.reason) {
                chosen = Some(Chosen { index, device, reason });
            }
            cache
        });
        candidates.push(Candidate { device_path, found });
    }
    Choice { candidates, chosen }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like sysfs.
    struct Sysfs(tempfile::TempDir);

    impl Sysfs {
        fn new() -> Self {
            let sysfs = Self(tempfile::tempdir().unwrap());
            for dir in ["dev/block", "class/nvme-generic"] {
                std::fs::create_dir_all(sysfs.0.path().join(dir)).unwrap();
            }
            sysfs
        }

        /// Adds a device below `devices/`. The directory of the device gets a `uevent` file and the given files.
        fn add(&self, path: &str, (major, minor): (u32, u32), files: &[(&str, &str)]) -> &Self {
            let name = path.rsplit('/').next().unwrap();
            let dir = self.0.path().join("devices").join(path);
            std::fs::create_dir_all(&dir).unwrap();
            let uevent = format!("MAJOR={major}\nMINOR={minor}\nDEVNAME={name}\n");
            for (file, text) in [("uevent", uevent.as_str())].iter().chain(files) {
                std::fs::write(dir.join(file), format!("{}\n", text.trim_end())).unwrap();
            }
            let link = match name.strip_prefix("ng") {
                Some(_) => format!("class/nvme-generic/{name}"),
                None => format!("dev/block/{major}:{minor}"),
            };
            std::os::unix::fs::symlink(&dir, self.0.path().join(link)).unwrap();
            if name.starts_with("nv") || name.starts_with("ng") {
                // The link from a disk to its controller or subsystem is relative.
                if !files.iter().any(|(file, _)| *file == "partition") {
                    std::os::unix::fs::symlink("..", dir.join("device")).unwrap();
                }
            }
            self
        }

        fn device_paths(&self, dev: (u32, u32)) -> Result<Vec<DevicePath>> {
            device_paths_in(self.0.path(), dev)
        }

        /// Returns the name, kind and base of each device path.
        fn summary(&self, dev: (u32, u32)) -> Vec<(String, DevicePathKind, u64)> {
            let device_paths = self.device_paths(dev).unwrap().into_iter();
            device_paths
                .map(|device_path| {
                    (device_path.path.display().to_string(), device_path.kind, device_path.base)
                })
                .collect()
        }
    }

    fn partition<'a>(start: &'a str, size: &'a str) -> [(&'a str, &'a str); 3] {
        [("partition", "1"), ("start", start), ("size", size)]
    }

    #[test]
    fn a_partition_has_the_disk_beneath_it() {
        let sysfs = Sysfs::new();
        sysfs.add("virtual/block/vda", (254, 0), &[("size", "100000")]);
        sysfs.add("virtual/block/vda/vda1", (254, 1), &partition("2048", "97952"));
        let device_paths = sysfs.device_paths((254, 1)).unwrap();
        assert_eq!(device_paths.len(), 2);
        let (disk, own) = (&device_paths[0], &device_paths[1]);
        assert_eq!(
            (disk.kind, disk.base, disk.size),
            (DevicePathKind::WholeDisk, 1 << 20, 97952 * 512)
        );
        assert_eq!((disk.path.to_str().unwrap(), disk.node), ("/dev/vda", (254, 0)));
        assert_eq!((own.kind, own.base, own.size), (DevicePathKind::FileSystem, 0, 97952 * 512));
        assert_eq!((own.path.to_str().unwrap(), own.node), ("/dev/vda1", (254, 1)));
    }

    #[test]
    fn nothing_beneath_a_mapped_device_is_a_device_path() {
        let sysfs = Sysfs::new();
        for (minor, name) in ["dm-0", "md127", "loop3", "zram1", "vdb"].into_iter().enumerate() {
            let dev = (250, minor as u32);
            sysfs.add(&format!("virtual/block/{name}"), dev, &[("size", "8")]);
            let own = (format!("/dev/{name}"), DevicePathKind::FileSystem, 0);
            assert_eq!(sysfs.summary(dev), [own]);
        }
    }

    #[test]
    fn an_nvme_namespace_has_its_character_device() {
        let sysfs = Sysfs::new();
        sysfs.add("pci/nvme0/nvme0n1", (259, 0), &[("size", "10000")]);
        sysfs.add("pci/nvme0/nvme0n1/nvme0n1p1", (259, 1), &partition("8", "100"));
        sysfs.add("pci/nvme0/ng0n1", (241, 0), &[]);
        let of = |path: &str, kind, base| (path.to_owned(), kind, base);
        let whole = [
            of("/dev/ng0n1", DevicePathKind::NvmeChar, 0),
            of("/dev/nvme0n1", DevicePathKind::FileSystem, 0),
        ];
        assert_eq!(sysfs.summary((259, 0)), whole);
        let part = [
            of("/dev/ng0n1", DevicePathKind::NvmeChar, 4096),
            of("/dev/nvme0n1", DevicePathKind::WholeDisk, 4096),
            of("/dev/nvme0n1p1", DevicePathKind::FileSystem, 0),
        ];
        assert_eq!(sysfs.summary((259, 1)), part);
        let device_paths = sysfs.device_paths((259, 1)).unwrap();
        assert_eq!((device_paths[0].node, device_paths[0].size), ((241, 0), 100 * 512));
    }

    #[test]
    fn several_paths_to_a_namespace_have_one_character_device() {
        let sysfs = Sysfs::new();
        let size = [("size", "10000")];
        sysfs.add("virtual/nvme-subsystem/nvme-subsys1/nvme1n1", (259, 1), &size);
        sysfs.add("virtual/nvme-subsystem/nvme-subsys1/ng1n1", (241, 0), &[]);
        let kinds: Vec<_> =
            sysfs.summary((259, 1)).into_iter().map(|device_path| device_path.1).collect();
        assert_eq!(kinds, [DevicePathKind::NvmeChar, DevicePathKind::FileSystem]);
    }

    #[test]
    fn a_character_device_of_another_namespace_is_no_device_path() {
        let sysfs = Sysfs::new();
        let size = [("size", "10000")];
        // Three devices must not be chosen: a namespace with the right name but another controller, another namespace, and an individual
        // path of a multipath namespace.
        sysfs.add("pci/nvme0/nvme0n1", (259, 0), &size).add("pci/nvme1/ng0n1", (241, 0), &[]);
        sysfs.add("pci/nvme1/nvme1n1", (259, 1), &size).add("pci/nvme1/ng1n11", (241, 1), &[]);
        sysfs.add("pci/nvme2/nvme2c0n1", (259, 2), &size).add("pci/nvme2/ng2c0n1", (241, 2), &[]);
        for minor in 0..3 {
            let kinds: Vec<_> =
                sysfs.summary((259, minor)).into_iter().map(|device_path| device_path.1).collect();
            assert_eq!(kinds, [DevicePathKind::FileSystem], "nvme{minor}");
        }
    }

    #[test]
    fn a_value_that_sysfs_lacks_is_an_error() {
        let sysfs = Sysfs::new();
        sysfs.add("virtual/block/vda", (254, 0), &[("size", "2000")]);
        let kind = |dev| sysfs.device_paths(dev).unwrap_err().kind();
        assert_eq!(kind((0, 45)), ErrorKind::Unsupported);
        assert_eq!(kind((254, 9)), ErrorKind::Io(Errno::ENOENT));
        let far = u64::MAX.to_string();
        let bad = [("1000", "1001"), ("36028797018963967", "1"), ("x", "1"), ("0", far.as_str())];
        for (minor, (start, size)) in (1..).zip(bad) {
            sysfs.add(
                &format!("virtual/block/vda/vda{minor}"),
                (254, minor),
                &partition(start, size),
            );
            assert_eq!(kind((254, minor)), ErrorKind::Corrupt, "{start} {size}");
        }
        sysfs.add("virtual/block/vda/vda5", (254, 5), &partition("1000", "1000"));
        assert_eq!(sysfs.device_paths((254, 5)).unwrap().len(), 2);
    }

    /// Chooses a device path by the rule in the module documentation, and returns the path and the reason. `found` contains the results of
    /// opening the paths.
    fn taken(found: &[Result<Option<(u64, u64)>, Errno>]) -> (Option<(usize, Reason)>, String) {
        let kinds =
            [DevicePathKind::NvmeChar, DevicePathKind::WholeDisk, DevicePathKind::FileSystem];
        let device_path = |(index, kind)| {
            let path = PathBuf::from(format!("/dev/{index}"));
            DevicePath { path, node: (1, index as u32), kind, base: 0, size: 1 }
        };
        let device_paths =
            kinds[3 - found.len()..].iter().copied().enumerate().map(device_path).collect();
        let mut results = found.iter();
        let choice = choose(device_paths, |device_path| match *results.next().unwrap() {
            Ok(cache) => {
                let cache = cache.map(|(pages, dirty)| PageCache { pages, dirty });
                Ok((device_path.node.1 as usize, cache))
            }
            Err(errno) => Err(Error::io(errno, "open")),
        });
        assert_eq!(choice.candidates.len(), found.len());
        let chosen = choice.chosen.as_ref().map(|chosen| {
            assert_eq!(
                chosen.device, chosen.index,
                "the indexes of the device path and of its device are equal"
            );
            (chosen.index, chosen.reason)
        });
        (chosen, choice.to_string())
    }

    #[test]
    fn the_rule_is_as_written() {
        let cache = |pages, dirty| Ok(Some((pages, dirty)));
        let rule = |found: &[_]| taken(found).0;
        // If any cache is empty, the first path with an empty cache is chosen.
        assert_eq!(rule(&[cache(0, 0), cache(0, 0)]), Some((0, Reason::Empty)));
        assert_eq!(rule(&[cache(1, 0), cache(0, 0)]), Some((1, Reason::Empty)));
        assert_eq!(rule(&[Err(Errno::EACCES), cache(0, 0), cache(0, 0)]), Some((1, Reason::Empty)));
        // No cache is empty. The first path without dirty pages is chosen. The numbers of clean pages do not matter.
        assert_eq!(rule(&[cache(900, 0), cache(5, 0)]), Some((0, Reason::Clean)));
        assert_eq!(rule(&[cache(2, 1), cache(900, 0)]), Some((1, Reason::Clean)));
        // All caches contain dirty pages, or the kernel does not count the pages: the first path is chosen.
        assert_eq!(rule(&[cache(9, 9), cache(1, 1)]), Some((0, Reason::First)));
        assert_eq!(rule(&[Ok(None), Ok(None)]), Some((0, Reason::First)));
        assert_eq!(rule(&[Ok(None), cache(1, 0)]), Some((1, Reason::Clean)));
        // If no path can be opened, no path is chosen.
        assert_eq!(rule(&[Err(Errno::EACCES), Err(Errno::ENOENT)]), None);
        assert_eq!(rule(&[]), None);
    }

    #[test]
    fn a_choice_says_in_one_line_what_was_found() {
        let found = [Err(Errno::EACCES), Ok(Some((0, 0))), Ok(Some((601, 58)))];
        let expected = "/dev/1 (whole disk), the first device path without cached pages; /dev/0 (NVMe character device): open: Permission denied (EACCES); /dev/2 (file system's device): 601 cached pages, 58 dirty";
        assert_eq!(taken(&found).1, expected);
        let none = "no device path can be opened; /dev/0 (file system's device): open: \
            No such file or directory (ENOENT)";
        assert_eq!(taken(&[Err(Errno::ENOENT)]).1, none);
    }
}
