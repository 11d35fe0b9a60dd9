//! `ironmap verity check`: verifies data with their hash tree.

use ironmap::Location;
use ironmap::fs::uuid_text;
use ironmap_image::verity::{Hash, Tree};
use ironmap_image::{Failure, Report};

use super::bytes;
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
    let parameters = Tree::verify_with(&args.data, location.as_ref(), &root, report)?;
    if args.quiet {
        return Ok(());
    }
    Ok(print_line(format_args!(
        "{}: all {} blocks match the root hash; UUID {}",
        one_line(&args.data.to_string()),
        parameters.data_blocks,
        uuid_text(&parameters.uuid)
    ))?)
}
