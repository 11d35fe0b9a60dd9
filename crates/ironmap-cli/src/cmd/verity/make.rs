//! `ironmap verity make`: makes a hash tree.

use std::ops::Range;
use std::sync::Arc;

use ironmap::device::Device;
use ironmap::fs::uuid_text;
use ironmap::location::Site;
use ironmap::{ErrorKind, Location};
use ironmap_image::room::{self, Room};
use ironmap_image::uuid::{Uuid, parse_uuid};
use ironmap_image::verity::{self, Parameters, Place};
use ironmap_image::{Failure, Report};
use serde::Serialize;

use super::{bytes, failed, hexadecimal, open, options};
use crate::failure::{FORCED, hint_at};
use crate::interrupt;
use crate::output::print_json;
use crate::size::size;
use crate::target;
use crate::terminal::{one_line, print_line};

/// Makes the hash tree of DATA, and prints the root hash
///
/// The tree is written to HASH, which is made if it does not exist. Without HASH, the tree is appended to the image file DATA. HASH with known content is
/// refused without --force. DATA must not change afterwards.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap verity make root.img
  ironmap verity make root.img root.verity
  ironmap verity make --salt - --uuid 6f1c5a0e-4f0b-4b0e-9a53-1d2f6a7b8c9d /dev/sdb2 /dev/sdb3")]
pub(super) struct Args {
    /// The salt in hexadecimal digits, at most 256 bytes; - for none; by default random, or derived from $SOURCE_DATE_EPOCH
    #[arg(short, long, value_name = "HEX", value_parser = salt)]
    salt: Option<Salt>,
    /// The UUID of the hash tree; by default random, or derived from $SOURCE_DATE_EPOCH
    #[arg(short = 'U', long, value_parser = parse_uuid)]
    uuid: Option<Uuid>,
    /// The size of a data block: a power of two from 512 to 512K
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "4K")]
    data_block_size: u64,
    /// The size of a hash block: a power of two from 512 to 512K
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "4K")]
    hash_block_size: u64,
    /// Overwrite the content of HASH
    #[arg(short = 'F', long)]
    force: bool,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
    /// The device, image or partition with the data
    #[arg(value_name = "DATA", value_parser = target::volume())]
    data: Location,
    /// The device, image or partition for the hash tree
    #[arg(value_name = "HASH", value_parser = target::volume())]
    hash: Option<Location>,
}

#[derive(Clone, Debug)]
struct Salt(Vec<u8>);

fn salt(text: &str) -> Result<Salt, String> {
    if text == "-" { Ok(Salt(Vec::new())) } else { bytes(text).map(Salt) }
}

/// A hash tree, for JSON.
#[derive(Serialize)]
struct Made {
    root_hash: String,
    salt: String,
    uuid: String,
    data_blocks: u64,
    data_block_size: u32,
    hash_block_size: u32,
    hash_offset: u64,
    hash_size: u64,
}

/// A hash tree that was written.
struct Written {
    root: verity::Hash,
    /// The position of the tree in its device.
    offset: u64,
    parameters: Parameters,
}

pub(super) fn run(args: &Args, report: &Report) -> Result<(), Failure> {
    interrupt::catch();
    let Written { root, offset, parameters } = match &args.hash {
        None => args.appended(report)?,
        Some(hash) => match (&args.data, hash) {
            (Location::Plain(data), Location::Plain(to)) if data.shares_device(to) => {
                args.in_parts(data, to, report)?
            }
            _ => {
                let made = args.separate(hash, report);
                report.context().end_aside(made)?
            }
        },
    };
    let made = Made {
        root_hash: hexadecimal(&root),
        salt: hexadecimal(&parameters.salt),
        uuid: uuid_text(&parameters.uuid),
        data_blocks: parameters.data_blocks,
        data_block_size: parameters.data_block,
        hash_block_size: parameters.hash_block,
        hash_offset: offset,
        hash_size: parameters.tree_size(),
    };
    if args.json {
        return print_json(&made);
    }
    let hash = args.hash.as_ref().unwrap_or(&args.data);
    Ok(print_line(format_args!(
        "{}: {} bytes of hashes at {offset}, UUID {}\nroot hash: {}",
        one_line(&hash.to_string()),
        made.hash_size,
        made.uuid,
        made.root_hash
    ))?)
}

impl Args {
    /// The parameters of the tree of `len` bytes of data.
    fn parameters(&self, len: u64, report: &Report) -> Result<Parameters, Failure> {
        let small = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
        let seed = report.context().source_date()?.map(|date| date.to_string());
        let (uuid, salt) = verity::identity(seed, len)?;
        let (data_block, hash_block) = (small(self.data_block_size), small(self.hash_block_size));
        let data_blocks = len / u64::from(data_block.max(1));
        if data_blocks * u64::from(data_block) != len {
            return Err(Failure::usage(format!(
                "{}: {len} bytes are not a multiple of the data block size, {data_block} bytes",
                self.data
            )));
        }
        let salt = self.salt.clone().map_or_else(|| salt.to_vec(), |Salt(salt)| salt);
        let uuid = self.uuid.unwrap_or(uuid);
        let parameters = Parameters { data_block, hash_block, data_blocks, salt, uuid };
        parameters.validate().map_err(|error| self.refused(error))?;
        Ok(parameters)
    }

    /// Writes the tree to HASH, which is not on the device of DATA.
    fn separate(&self, hash: &Location, report: &Report) -> Result<Written, Failure> {
        let data = open(&self.data, false, report)?;
        let parameters = self.parameters(data.size(), report)?;
        let room = match room::file_of(hash) {
            Some(file) => {
                room::make(hash, file, parameters.tree_size(), self.force, report.context())
                    .map_err(hint_at(FORCED))?
            }
            None => Room::Old,
        };
        let written = open(hash, true, report).and_then(|device| {
            let (from, to) = ((&*data, 0..data.size()), (&device, 0..device.size()));
            self.write_to(hash, from, to, &parameters, report)
        });
        match written {
            Ok(root) => room.keep().map(|()| Written { root, offset: 0, parameters }),
            Err(failure) => {
                room.undo();
                Err(failure)
            }
        }
    }

    /// Writes the tree to HASH, which is another part of DATA's device or image.
    fn in_parts(&self, data: &Site, hash: &Site, report: &Report) -> Result<Written, Failure> {
        let opened = hash.open_with(data, &options());
        let opened = opened.map_err(|error| failed(&self.data, error))?;
        report.context().tell_faults(&self.data, &opened.faults);
        let device = &opened.device;
        let parameters = self.parameters(opened.read.end - opened.read.start, report)?;
        let (from, to) = ((&**device, opened.read), (device, opened.written));
        let root = self.write_to(&Location::Plain(hash.clone()), from, to, &parameters, report)?;
        Ok(Written { root, offset: 0, parameters })
    }

    /// Writes the hash tree of a range of a device to a target range. Fails if the target range is too short. Without --force, also fails
    /// if the target range has content.
    fn write_to(
        &self,
        hash: &Location,
        (data, read): (&dyn Device, Range<u64>),
        (device, range): (&Arc<dyn Device>, Range<u64>),
        parameters: &Parameters,
        report: &Report,
    ) -> Result<verity::Hash, Failure> {
        let len = range.end - range.start;
        if !self.force {
            room::check_empty_range(device, &range, hash).map_err(hint_at(FORCED))?;
        }
        if len < parameters.tree_size() {
            return Err(Failure::new(format!(
                "{hash}: the hash tree needs {} bytes, but there are only {len}",
                parameters.tree_size()
            )));
        }
        let (from, to) = (
            Place { device: data, start: read.start },
            Place { device: &**device, start: range.start },
        );
        self.write(from, to, parameters, report)
    }

    /// Refuses to append a tree to data that end with a tree.
    fn refuse_second(&self, data: &dyn Device) -> Result<(), Failure> {
        if let Some(at) = verity::find(data).map_err(|error| failed(&self.data, error))? {
            return Err(Failure::usage(format!(
                "{}: there is a hash tree at byte {at} already: truncate -s {at} removes it",
                self.data
            )));
        }
        Ok(())
    }

    /// Appends the tree to DATA.
    fn appended(&self, report: &Report) -> Result<Written, Failure> {
        let data = open(&self.data, true, report)?;
        self.refuse_second(&*data)?;
        let parameters = self.parameters(data.size(), report)?;
        let path = self.data.whole_file().filter(|path| path.is_file());
        let Some(path) = path else {
            return Err(Failure::usage(format!(
                "{}: a hash tree can be appended only to an image file: name a HASH for the tree",
                self.data
            )));
        };
        let offset = data.size().next_multiple_of(u64::from(parameters.hash_block));
        drop(data);
        let extended = room::extend(path, offset + parameters.tree_size())?;
        let written = open(&self.data, true, report).and_then(|device| {
            let [data, hashes] = [0, offset].map(|start| Place { device: &*device, start });
            self.write(data, hashes, &parameters, report)
        });
        if written.is_err() {
            extended.undo();
        }
        written.map(|root| Written { root, offset, parameters })
    }

    fn write(
        &self,
        data: Place<'_>,
        hashes: Place<'_>,
        parameters: &Parameters,
        report: &Report,
    ) -> Result<verity::Hash, Failure> {
        let stop = report.stop();
        let made = verity::make(data, hashes, parameters, &mut |_| verity::unless_stopped(stop));
        made.map_err(|error| stop.cause(self.refused(error)))
    }

    fn refused(&self, error: ironmap::Error) -> Failure {
        match error.kind() {
            ErrorKind::InvalidInput => Failure::usage(error),
            _ => failed(&self.data, error),
        }
    }
}
