//! The device or image that becomes a disk.

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;

use ironmap::device::{BlockFile, OpenMode, Psync};
use ironmap::location::LocationOptions;
use ironmap::{Engine, Location, Part};

use crate::context::Context;
use crate::failure::Failure;
use crate::room::{self, NewImage, check_empty};

/// The sector size of an image.
const SECTOR: u64 = 512;

/// A device or image of which the properties are known.
pub(super) struct Target {
    pub(super) sector: u64,
    /// The size in bytes. `None` for an image whose size depends on its partitions.
    pub(super) size: Option<u64>,
    /// The size of an existing image, if a partition is the rest of the disk.
    pub(super) existing: Option<u64>,
    /// The path of an image file, which is made new.
    file: Option<PathBuf>,
}

impl Target {
    /// Examines the location, and changes nothing.
    ///
    /// # Errors
    /// Fails if the location is a part of a device, if it is in use, or if it has known content and `force` is not set.
    pub(super) fn find(
        location: &Location,
        size: Option<u64>,
        sector: Option<u32>,
        force: bool,
        context: &Context,
    ) -> Result<Self, Failure> {
        if !matches!(location, Location::Plain(site) if site.part == Part::Whole) {
            return Err(Failure::usage(format!(
                "{location}: a partition table is only for a whole device or image"
            )));
        }
        if let Some(sector) = sector.filter(|sector| !matches!(sector, 512 | 4096)) {
            return Err(Failure::usage(format!(
                "a sector size of {sector} bytes is not possible: write 512 or 4096"
            )));
        }
        room::refuse_name(location, None, force)?;
        let path = location.whole_file();
        let kind = path.and_then(|path| path.metadata().ok());
        // A missing device is not made as a file.
        let is_file = match &kind {
            Some(found) => found.is_file(),
            None => path.is_some_and(|path| !path.starts_with("/dev")),
        };
        if let Some(path) = path.filter(|_| is_file) {
            let sector = sector.map_or(SECTOR, u64::from);
            let file = Some(path.to_owned());
            let Some(found) = kind else { return Ok(Self { sector, size, existing: None, file }) };
            let mode = OpenMode { write: true, ..OpenMode::default() };
            let opened = BlockFile::open(path, &mode).map_err(|error| Failure::open(&error))?;
            if !force {
                check_empty(&Psync::new(Arc::new(opened)), location)?;
            }
            let existing = Some(found.len()).filter(|len| *len > 0);
            return Ok(Self { sector, size, existing, file });
        }
        let how = LocationOptions::new().engine(Engine::Psync).write(true);
        let opened = context.open_device(location, &how).map_err(|error| Failure::open(&error))?;
        if !force {
            check_empty(&*opened.device, location)?;
        }
        let is_block = kind.is_some_and(|kind| kind.file_type().is_block_device());
        let own = u64::from(opened.device.limits().logical_block).max(SECTOR);
        let own = if is_block { own } else { SECTOR };
        let sector = sector.map_or(own, u64::from);
        if is_block && sector != own {
            return Err(Failure::usage(format!(
                "{location}: the device has sectors of {own} bytes"
            )));
        }
        let found = opened.device.size();
        if let Some(size) = size.filter(|size| *size != found) {
            return Err(Failure::usage(format!(
                "{location}: the device has {found} bytes, so its size cannot be {size}: omit the size"
            )));
        }
        Ok(Self { sector, size: Some(found), existing: None, file: None })
    }

    /// Makes an image file of `size` bytes under a temporary name. Returns `None` for a device.
    ///
    /// # Errors
    /// The errors of the host.
    pub(super) fn create(
        self,
        location: &Location,
        size: u64,
        context: &Context,
    ) -> Result<Option<NewImage>, Failure> {
        let Some(path) = self.file else { return Ok(None) };
        // If the file was missing, it must still be missing when the image gets its name.
        let image = match NewImage::create_aside(&path)? {
            Some(image) => image,
            None => NewImage::create_over(&path)?,
        };
        context.make_aside(location, image.path());
        image.empty(size)?;
        Ok(Some(image))
    }
}
