//! `ironmap verity make`: makes a hash tree.

use clap::ArgAction;
use ironmap::Location;
use ironmap::fs::uuid_text;
use ironmap_image::uuid::{Uuid, parse_uuid};
use ironmap_image::verity::{MadeTree, Tree};
use ironmap_image::{Failure, Report};
use serde::Serialize;

use super::{bytes, hexadecimal};
use crate::failure::{FORCED, hint_at, overwrite};
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
    /// Overwrite the content of HASH; -F -F also overwrites a member of an MD array or of an LVM volume group
    #[arg(short = 'F', long, action = ArgAction::Count)]
    force: u8,
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

pub(super) fn run(args: &Args, report: &Report) -> Result<(), Failure> {
    interrupt::catch();
    let tree = args.tree().make_with(&args.data, args.hash.as_ref(), report);
    let MadeTree { root, offset, parameters, .. } = tree.map_err(hint_at(FORCED))?;
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
    fn tree(&self) -> Tree {
        let small = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
        let mut tree = Tree::new()
            .data_block_size(small(self.data_block_size))
            .hash_block_size(small(self.hash_block_size))
            .overwrite(overwrite(self.force));
        if let Some(Salt(salt)) = &self.salt {
            tree = tree.salt(salt.clone());
        }
        if let Some(uuid) = self.uuid {
            tree = tree.uuid(uuid);
        }
        tree
    }
}
