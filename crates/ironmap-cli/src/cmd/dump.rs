//! `ironmap dump`: shows on-disk structures, field by field.

use ironmap::Location;
use ironmap::fs::ext4::dump::{Fields, Value};
use ironmap::units::{FsBlock, InodeNo};
use ironmap_image::source::Source;
use ironmap_image::{Failure, Report};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::output::{Encoding, print_json};
use crate::target;

/// Shows the fields of an inode, a block, a group, a superblock or the journal, as JSON
///
/// Fields have the names of Linux's documentation. The values on disk are printed, even wrong values. Nothing is written.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap dump disk.img inode 12 | jq .i_mode
  ironmap dump /dev/sdb1 group 0
  ironmap dump disk.img@p1 superblock --backup 1
  ironmap dump disk.img block 8193")]
pub(crate) struct Args {
    /// The volume
    #[arg(value_name = "VOLUME", value_parser = target::volume())]
    volume: Location,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// An inode, in use or not, with its map and its extended attributes
    Inode {
        /// The number of the inode
        number: u64,
    },
    /// A block: its kind, its decoded content, and its bytes
    Block {
        /// The number of the block
        number: u64,
    },
    /// The descriptor of a group
    Group {
        /// The number of the group, from 0 on
        number: u32,
    },
    /// The superblock, or a backup of it
    Superblock {
        /// The backup in this group
        #[arg(long, value_name = "GROUP")]
        backup: Option<u32>,
    },
    /// The journal's superblock
    Journal,
}

pub(crate) fn run(args: &Args, report: &Report) -> Result<(), Failure> {
    let source = Source::open(&args.volume, report.context())?;
    let fs = source.ext4()?;
    let record = match args.what {
        What::Inode { number } => fs.dump_inode(InodeNo(number)),
        What::Block { number } => fs.dump_block(FsBlock(number)),
        What::Group { number } => fs.dump_group(number),
        What::Superblock { backup } => fs.dump_superblock(backup),
        What::Journal => fs.dump_journal(),
    };
    let record = record.map_err(|error| Failure::at(&args.volume, &error))?;
    print_json(&Json(&Value::Record(record)))
}

/// A value as JSON. Bytes become hexadecimal digits. Invalid UTF-8 in a text is escaped as in all JSON output of the program.
struct Json<'a>(&'a Value);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Number(number) => serializer.serialize_u64(*number),
            Value::Flag(flag) => serializer.serialize_bool(*flag),
            // Only the texts in lists are written here. `record_to_json` writes the texts of records.
            Value::Text(text) => serializer.serialize_str(&String::from_utf8_lossy(text)),
            Value::Bytes(bytes) => serializer.serialize_str(&hex(bytes)),
            Value::List(values) => serializer.collect_seq(values.iter().map(Json)),
            Value::Record(record) => record_to_json(record, serializer),
        }
    }
}

fn record_to_json<S: Serializer>(record: &Fields, serializer: S) -> Result<S::Ok, S::Error> {
    let texts = record.iter().filter_map(|(_, value)| match value {
        Value::Text(text) => Some(&text[..]),
        _ => None,
    });
    let encoding = Encoding::of(texts);
    let mut map = serializer.serialize_map(None)?;
    for (name, value) in record {
        match value {
            Value::Text(text) => map.serialize_entry(name, &encoding.text(text))?,
            value => map.serialize_entry(name, &Json(value))?,
        }
    }
    if !encoding.is_utf8() {
        map.serialize_entry("encoding", &encoding)?;
    }
    map.end()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // A write to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
