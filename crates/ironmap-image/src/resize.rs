//! Makes a volume larger or smaller, together with its image file.

use ironmap::location::LocationOptions;
use ironmap::{Engine, ErrorKind, Location, NewSize, ResizeOptions, Resized, Volume};

use crate::failure::{Failure, named};
use crate::report::Report;
use crate::room::{Room, extend, open_held};

/// Resizes a volume. An image file that is shorter than a given size is extended before the volume grows. If the volume shrinks, the file
/// is truncated afterwards.
///
/// # Errors
/// The volume cannot be opened, or cannot have this size. The image file then keeps its length. After an error of the device, the file may
/// get another length, because the volume may already have the new size.
pub fn resize(volume: &Location, size: NewSize, report: &Report) -> Result<Resized, Failure> {
    let held = report.context().hold(volume);
    let _held = held.map_err(|error| Failure::open(&error))?;
    let (image, held_file) = (volume.whole_file(), report.context().held_file(volume));
    let room = match (image, size) {
        (Some(image), NewSize::Bytes(size)) => {
            check_whole(volume, report)?;
            extend(image, size, held_file)?
        }
        _ => Room::Old,
    };
    let resized = match resize_volume(volume, size, &room, report) {
        Ok(resized) => resized,
        Err(failure) if failure.is_io() => return Err(failure),
        Err(failure) => {
            room.undo();
            return Err(failure);
        }
    };
    if let Some(image) = image.filter(|_| resized.blocks < resized.before) {
        let failed = |error| Failure::host(image.display(), error);
        if image.metadata().map_err(failed)?.is_file() {
            let len = resized.blocks * u64::from(resized.block_size);
            open_held(image, held_file)?.set_len(len).map_err(failed)?;
        }
    }
    Ok(resized)
}

/// Refuses a volume that cannot be read. Such a volume is usually in a truncated image, and extending the image would hide the truncation.
fn check_whole(location: &Location, report: &Report) -> Result<(), Failure> {
    let how = LocationOptions::new().engine(Engine::Psync);
    let opened =
        report.context().open_device(location, &how).map_err(|error| Failure::open(&error))?;
    let volume = Volume::on(opened.device);
    volume.map(drop).map_err(|error| Failure::open(&named(location, error)))
}

fn resize_volume(
    location: &Location,
    size: NewSize,
    room: &Room,
    report: &Report,
) -> Result<Resized, Failure> {
    let clock = report.context().clock()?;
    let mut options = ResizeOptions::new().size(size);
    if let Room::Extended { from, .. } = room {
        options = options.zeros_from(*from);
    }
    let how = LocationOptions::new().engine(Engine::Psync).write(true).cached(true);
    let opened =
        report.context().open_device(location, &how).map_err(|error| Failure::open(&error))?;
    let resized = ironmap::tools::resize(&opened.device, &options, clock).map_err(|error| {
        let named = |error| named(location, error);
        match error.kind() {
            ErrorKind::InvalidInput => Failure::refused_arguments(&named(error)),
            ErrorKind::NoSpace => Failure::new(named(error).to_string()),
            ErrorKind::Io(_) => Failure::at(location, &error),
            _ => Failure::open(&named(error)),
        }
    });
    let closed = opened.integrity.map_or(Ok(()), |integrity| integrity.device.close());
    let resized = resized?;
    closed.map_err(|error| Failure::at(location, &error))?;
    Ok(resized)
}
