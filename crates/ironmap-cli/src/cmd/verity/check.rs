//! `ironmap verity check`: verifies data with their hash tree.

use ironmap::fs::uuid_text;
use ironmap::{ErrorKind, Location};
use ironmap_image::verity::{self, Checked, Hash, Parameters, Place};
use ironmap_image::{Failure, Reason, Report};

use super::{bytes, failed, hexadecimal, open};
use crate::interrupt;
use crate::target;
use crate::terminal::{one_line, print_line};

/// Verifies each block of DATA with its hash tree and the root hash, and names the first block that does not match
///
/// Without HASH, the hash tree is the end of DATA, as ironmap verity make appends it. Nothing is written.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap verity check root.img 8c4d0f3a...
  ironmap verity check disk.img@p2 disk.img@p3 8c4d0f3a...")]
pub(super) struct Args {
    /// Print nothing if all blocks match
    #[arg(short, long)]
    quiet: bool,
    /// The device, image or partition with the data
    #[arg(value_name = "DATA", value_parser = target::volume())]
    data: Location,
    /// HASH, the device, image or partition with the hash tree, and the root hash
    #[arg(value_name = "[HASH] ROOTHASH", num_args = 1..=2, required = true)]
    rest: Vec<String>,
}

pub(super) fn run(args: &Args, report: &Report) -> Result<(), Failure> {
    interrupt::catch();
    let (hash, root) = match &*args.rest {
        [hash, root] => (Some(hash), root),
        [root, ..] => (None, root),
        [] => return Err(Failure::usage("the root hash is missing")),
    };
    let root: Option<Hash> = bytes(root).ok().and_then(|bytes| bytes.try_into().ok());
    let root = root.ok_or_else(|| {
        Failure::usage(
            "the root hash is not 64 hexadecimal digits, as ironmap verity make prints them",
        )
    })?;
    let location = match hash {
        Some(text) => Some(Location::parse(text.as_ref()).map_err(|error| Failure::usage(&error))?),
        None => None,
    };
    let data = open(&args.data, false, report)?;
    let opened = match &location {
        Some(location) => Some(open(location, false, report)?),
        None => None,
    };
    let of_hashes = location.as_ref().unwrap_or(&args.data);
    let hashes = match &opened {
        Some(device) => Place { device: &**device, start: 0 },
        None => {
            let start = verity::find(&*data).map_err(|error| failed(&args.data, error))?;
            let start = start.ok_or_else(|| {
                let what = "there is no hash tree at its end: name HASH, or make a tree with ironmap verity make";
                Failure::with(Reason::Refused, format!("{}: {what}", args.data))
            })?;
            Place { device: &*data, start }
        }
    };
    let parameters = Parameters::read(hashes).map_err(|error| failed(of_hashes, error))?;
    let (place, stop) = (Place { device: &*data, start: 0 }, report.stop());
    let checked = verity::check(place, hashes, &root, &mut |_| verity::unless_stopped(stop));
    let checked = checked.map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => {
            Failure::corrupt(&args.data, "the data are shorter than the hash tree says")
        }
        _ => stop.cause(failed(&args.data, error)),
    })?;
    let bad = |place: &Location, what: String| Err(Failure::corrupt(place, &what));
    match checked {
        Checked::Good if args.quiet => Ok(()),
        Checked::Good => Ok(print_line(format_args!(
            "{}: all {} blocks match the root hash; UUID {}",
            one_line(&args.data.to_string()),
            parameters.data_blocks,
            uuid_text(&parameters.uuid)
        ))?),
        Checked::OtherRoot { found } => bad(
            of_hashes,
            format!(
                "the root hash is {}: the tree belongs to other data, or its top block is damaged",
                hexadecimal(&found)
            ),
        ),
        Checked::HashBlock { at } => bad(
            of_hashes,
            format!("the hash block at byte {at} does not match the hash in the level above"),
        ),
        Checked::DataBlock { number, at } => bad(
            &args.data,
            format!("the data block {number} (at byte {at}) does not match its hash"),
        ),
    }
}
