//! Makes a volume, and fills it with its content.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ironmap::fs::ext4::{MkfsOptions, Superblock};
use ironmap::location::LocationOptions;
use ironmap::{Engine, Errno, Error, ErrorKind, Location};

use super::fit::Fit;
use super::{Plan, Size};
use crate::device_name;
use crate::failure::{Failure, named};
use crate::needs::Dimensions;
use crate::report::Report;
use crate::room::{self, Format, Room};
use crate::sources::{Layers, Sources};

/// The maximum number of attempts to make an image. If an image is too small, the next attempt makes a larger one.
const FITS: u32 = 24;

impl Plan<'_> {
    /// Makes the volume, and copies the sources into it.
    ///
    /// # Errors
    /// The volume cannot be made, or a source cannot be copied.
    pub(super) fn carry_out(
        &self,
        sources: &mut Sources,
        report: &mut Report,
    ) -> Result<Superblock, Failure> {
        let is_new = match room::file_of(self.volume) {
            Some((path, Format::Qcow2(_))) => {
                (self.given().is_some() || self.fits(sources)) && !path.exists()
            }
            _ => false,
        };
        if self.compression.is_some() && !is_new {
            return Err(room::not_compressed(self.volume));
        }
        let made = self.make_and_fill(sources, report);
        report.context().end_aside(made)
    }

    fn make_and_fill(
        &self,
        sources: &mut Sources,
        report: &mut Report,
    ) -> Result<Superblock, Failure> {
        if let Some(fit) = Fit::new(self, sources, report)? {
            return self.make_to_fit(fit, sources, report);
        }
        let layers = sources.open()?;
        let held = report.context().hold(self.volume);
        let _held = held.map_err(|error| Failure::open(&missing(self.volume, error)))?;
        let mut room = match (self.file(), self.given()) {
            (Some(file), Some(size)) => {
                room::make(self.volume, file, size, self.overwrite, report.context())?
            }
            _ => Room::Old,
        };
        if let (Room::New(image), Some(_)) = (&mut room, self.compression) {
            image.compress(report.stop());
        }
        let options = self.options.clone().size(self.given());
        let options = options.zeroed(self.options.zeroed || matches!(room, Room::New(_)));
        let made = match self.make(&options, self.given(), report) {
            Ok(made) => made,
            Err(failure) => {
                room.undo();
                return Err(failure);
            }
        };
        if sources.is_empty() {
            return room.keep().map(|()| made);
        }
        let filled = self.fill(sources, layers, &made, report);
        let kept = if filled.is_ok() || self.keeps_part { room.keep() } else { Ok(()) };
        filled.and(kept).map(|()| made)
    }

    /// Returns the file of a new image, and its format.
    pub(super) fn file(&self) -> Option<(&Path, Format)> {
        let (path, format) = room::file_of(self.volume)?;
        let format = match (self.compression, format) {
            (Some(compression), Format::Qcow2(_)) => Format::Qcow2(compression),
            (_, format) => format,
        };
        Some((path, format))
    }

    /// Makes a new image with enough space for the sources, and fills it. After a failure, the image is removed.
    fn make_to_fit(
        &self,
        mut fit: Fit<'_>,
        sources: &Sources,
        report: &mut Report,
    ) -> Result<Superblock, Failure> {
        for left in (0..FITS).rev() {
            let options = fit.options();
            let make_of = |size| self.make(&options.clone().size(size), Some(size), report);
            let made = fit.make(make_of)?;
            match self.fill(sources, sources.open()?, &made, report) {
                Err(failure) if failure.is_for_space() && left > 0 => fit.grow(),
                filled => {
                    filled?;
                    return fit.keep().map(|()| made);
                }
            }
        }
        Err(Failure::new("ironmap found no image size that is large enough for the sources"))
    }

    /// Copies the sources into the new volume.
    fn fill(
        &self,
        sources: &Sources,
        layers: Layers,
        made: &Superblock,
        report: &mut Report,
    ) -> Result<(), Failure> {
        sources.fill(layers, self.options.time, dimensions(made), self.is_strict, report)?;
        // The last call of the progress callback may have requested the stop.
        report.stop().check()
    }

    fn make(
        &self,
        options: &MkfsOptions,
        size: Option<u64>,
        report: &Report,
    ) -> Result<Superblock, Failure> {
        let how = LocationOptions::new().engine(Engine::Psync).write(true).cached(true);
        // If no block size is given, a device with sectors of 4096 bytes gets blocks of 4096 bytes.
        let how = how.block_size(options.block_size.unwrap_or(4096));
        let opened = report
            .context()
            .open_device(self.volume, &how)
            .map_err(|error| Failure::open(&missing(self.volume, error)))?;
        room::check(&*opened.device, self.volume, self.overwrite)?;
        let size = size.unwrap_or(opened.device.size());
        let derived = report.context().source_date()?.map(|time| self.derived_uuid(size, time));
        let options = options.clone().uuid(options.uuid.or(derived)).force(true);
        let superblock = ironmap::tools::make(&*opened.device, &options).map_err(|error| {
            let asked = error.kind() == ErrorKind::InvalidInput;
            let error = named(self.volume, error);
            if asked { Failure::refused_arguments(&error) } else { Failure::open(&error) }
        })?;
        if let Some(integrity) = opened.integrity {
            integrity.device.close().map_err(|error| Failure::at(self.volume, &error))?;
        }
        Ok(superblock)
    }

    /// Returns the UUID of a reproducible build. The same options and size produce the same UUID. The UUID has version 8 and variant 1 of
    /// RFC 9562.
    fn derived_uuid(&self, size: u64, time: i64) -> [u8; 16] {
        let MkfsOptions { block_size, label, .. } = self.options;
        let label = OsStr::from_bytes(label);
        // FNV-1a of 128 bits.
        let words = format!("{time} {size} {block_size:?} {label:?}");
        let hash =
            words.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash: u128, byte| {
                (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b)
            });
        let mut uuid = hash.to_be_bytes();
        uuid[6] = uuid[6] & 0x0F | 0x80;
        uuid[8] = uuid[8] & 0x3F | 0x80;
        uuid
    }

    /// Returns the size that the caller has given.
    fn given(&self) -> Option<u64> {
        match self.size {
            Size::Bytes(size) => Some(size),
            Size::Device | Size::Shrink => None,
        }
    }

    /// Whether the size of a new image file depends on the sources.
    pub(super) fn fits(&self, sources: &Sources) -> bool {
        self.given().is_none() && !sources.is_empty()
    }
}

fn dimensions(made: &Superblock) -> Dimensions {
    let block = made.block_size.bytes() as u64;
    Dimensions {
        size: made.blocks_count * block,
        // The space for the content is counted in blocks of at least 4096 bytes. If this volume is too small, the next volume is larger,
        // and may have blocks of 4096 bytes although this volume has smaller blocks.
        unit: (block * u64::from(made.cluster_blocks)).max(4096),
        inodes: made.inodes_count.into(),
        inode_size: made.inode_size.into(),
    }
}

/// Returns the error for a volume that cannot be opened. For a missing image file, the text of the error is only "No such file or
/// directory".
fn missing(volume: &Location, error: Error) -> Error {
    match volume.whole_file() {
        Some(path) if error.errno() == Errno::ENOENT && !device_name::is_of_node(path) => {
            Error::new(ErrorKind::NotFound, "No such file or directory").at(volume)
        }
        _ => room::missing(volume, error),
    }
}
