//! The device or image that becomes a disk.

use std::path::{Path, PathBuf};

use ironmap::location::LocationOptions;
use ironmap::{Engine, Location, Part};

use crate::context::Context;
use crate::device_name;
use crate::failure::Failure;
use crate::new_image::{self, NewImage, target_of};
use crate::replaced::{Replaced, is_same};
use crate::room::{self, Format, Overwrite};

/// The default sector size of an image, in bytes.
const SECTOR: u64 = 512;

/// The device or image, after its properties have been determined.
pub(super) struct Target {
    pub(super) sector: u64,
    /// The size of the disk in bytes. `None` for an image whose size depends on its partitions.
    pub(super) size: Option<u64>,
    /// The size of an existing image. It is used only if a partition fills the rest of the disk.
    pub(super) existing: Option<u64>,
    /// The path and the format of the image file to make. `None` for a device.
    file: Option<(PathBuf, Format)>,
    /// The existing image that the new one replaces. The image is locked.
    replaced: Option<Replaced>,
}

impl Target {
    /// Examines the location, and changes nothing.
    ///
    /// # Errors
    /// Fails if the location is a part of a device, if it is in use, or if its content must not be overwritten.
    pub(super) fn find(
        location: &Location,
        size: Option<u64>,
        sector: Option<u32>,
        overwrite: Overwrite,
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
        room::refuse_name(location, None, overwrite != Overwrite::Unknown)?;
        // If the path of a missing file names a device, no image file is made there.
        let is_file = |path: &Path| match path.metadata() {
            Ok(found) => found.is_file(),
            Err(_) => !device_name::is_of_node(path),
        };
        let file = room::file_of(location).filter(|(path, _)| is_file(path));
        let file = file.map(|(path, format)| (path.to_owned(), format));
        let given = sector.is_some();
        let images = sector.map_or(SECTOR, u64::from);
        if let Some((path, _)) = &file
            && !path.exists()
        {
            return Ok(Self { sector: images, size, existing: None, file, replaced: None });
        }
        let stat = || {
            let path = file.as_ref().map(|(path, _)| target_of(path));
            path.map(|path| path.metadata().map_err(|error| Failure::host(path.display(), error)))
                .transpose()
        };
        let before = stat()?;
        let how = LocationOptions::new().engine(Engine::Psync).write(true);
        let opened = context.open_device(location, &how).map_err(|error| Failure::open(&error))?;
        room::check(&*opened.device, location, overwrite)?;
        let found = opened.device.size();
        if let (Some((path, _)), Some(before), Some(after)) = (&file, before, stat()?) {
            // The path was examined with stat before and after the open. If both results describe the same file, this file is the open
            // image.
            if !is_same(&before, &after) {
                return Err(new_image::replaced(path));
            }
            let existing = Some(found).filter(|size| *size > 0);
            let replaced = Some(Replaced::new(after, opened.device));
            return Ok(Self { sector: images, size, existing, file, replaced });
        }
        let is_block = location.whole_file().is_some();
        let own = u64::from(opened.device.limits().logical_block).max(SECTOR);
        let sector = if is_block { own } else { images };
        if images != sector && given {
            return Err(Failure::usage(format!(
                "{location}: the device has sectors of {own} bytes"
            )));
        }
        if let Some(size) = size.filter(|size| *size != found) {
            return Err(Failure::usage(format!(
                "{location}: the device has {found} bytes, so its size cannot be {size}: omit the size"
            )));
        }
        Ok(Self { sector, size: Some(found), existing: None, file: None, replaced: None })
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
        let Some((path, format)) = self.file else { return Ok(None) };
        let image = match self.replaced {
            Some(replaced) => NewImage::create_over(&path, format, replaced, context)?,
            // When the location was examined, no file had this path. If a file has appeared since then, the build fails, either at once or
            // when the image is given its final name.
            None => {
                let image = NewImage::create_aside(&path, format)?;
                image.ok_or_else(|| new_image::replaced(&path))?
            }
        };
        context.make_aside(location, image.path());
        image.empty(size)?;
        Ok(Some(image))
    }
}
