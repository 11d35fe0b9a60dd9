//! The files in which a volume is stored. A command does not read these files as a source, and does not overwrite them.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use ironmap::Location;
use ironmap::device::image::describe;
use ironmap::location::{Medium, Site};
use rustix::fs::{fstat, major, minor};

use crate::context::Context;

/// A set of files, by device and inode: images and device nodes, and the images of loop devices.
#[derive(Clone, Debug, Default)]
pub struct Spared(Vec<(u64, u64)>);

impl Spared {
    /// Returns the existing files in which a volume, and the journal and realtime devices of the command line, are stored.
    pub fn of(location: &Location, context: &Context) -> Self {
        let sites = |it: &Location| -> Vec<PathBuf> {
            let sites = [Some(it.data()), it.tags()].into_iter().flatten();
            sites.flat_map(paths_of).collect()
        };
        let location = context.place_of(location);
        let paths = sites(&location).into_iter().chain(context.further_devices().flat_map(sites));
        Self(paths.flat_map(|path| files_of(&path)).collect())
    }

    /// Whether the set contains the file with this device and inode.
    pub fn contains(&self, device: u64, inode: u64) -> bool {
        self.0.contains(&(device, inode))
    }

    /// Whether a path names a file of the set.
    pub fn has(&self, path: &Path) -> bool {
        files_of(path).into_iter().any(|(device, inode)| self.contains(device, inode))
    }

    /// Whether standard input is a file of the set.
    pub fn has_stdin(&self) -> bool {
        fstat(rustix::stdio::stdin()).is_ok_and(|stat| self.contains(stat.st_dev, stat.st_ino))
    }
}

/// Returns the paths of all files in which a volume is stored. For a virtual disk image, these include the backing files and the extents.
fn paths_of(site: &Site) -> Vec<PathBuf> {
    match &site.medium {
        Medium::Image(address) => {
            let found = describe(address).map(|found| found.files).unwrap_or_default();
            let paths = found.into_iter().map(|(path, _)| path);
            paths.chain([address.path.clone()]).collect()
        }
        _ => site.path().map(Path::to_owned).into_iter().collect(),
    }
}

/// Returns the file at a path. For a loop device or its partition, the result also contains the image file.
fn files_of(path: &Path) -> Vec<(u64, u64)> {
    let Ok(found) = path.metadata() else { return Vec::new() };
    let mut files = vec![(found.dev(), found.ino())];
    if found.file_type().is_block_device() {
        let device = format!("/sys/dev/block/{}:{}", major(found.rdev()), minor(found.rdev()));
        let names = ["loop/backing_file", "../loop/backing_file"];
        let image = names.iter().find_map(|name| fs::read(Path::new(&device).join(name)).ok());
        if let Some(mut image) = image {
            image.pop_if(|last| *last == b'\n');
            let image = PathBuf::from(std::ffi::OsString::from_vec(image)).metadata();
            files.extend(image.map(|image| (image.dev(), image.ino())));
        }
    }
    files
}
