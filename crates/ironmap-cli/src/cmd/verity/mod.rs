//! `ironmap verity`: makes and verifies hash trees of dm-verity.

mod check;
mod make;

use ironmap_image::{Failure, Report};

/// Makes and verifies the hash trees with which dm-verity protects read-only data
///
/// The format is that of veritysetup: a superblock of version 1, and a tree of SHA-256 digests. The kernel verifies each block that it reads
/// with the root hash.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap verity make root.img
  ironmap verity make disk.img@p2 disk.img@p3
  ironmap verity check disk.img@p2 disk.img@p3 ROOTHASH")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Make(make::Args),
    Check(check::Args),
}

pub(crate) fn run(args: &Args, report: &Report) -> Result<(), Failure> {
    match &args.command {
        Command::Make(args) => make::run(args, report),
        Command::Check(args) => check::run(args, report),
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses hexadecimal digits, two for each byte.
fn bytes(text: &str) -> Result<Vec<u8>, String> {
    let byte = |pair: &[u8; 2]| {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8)
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = if rest.is_empty() { pairs.iter().map(byte).collect() } else { None };
    bytes.ok_or_else(|| format!("{text} is not an even number of hexadecimal digits"))
}
