//! `ironmap man`: the manual pages.

use std::path::PathBuf;

use clap::CommandFactory;

use crate::cli::Cli;
use crate::failure::Failure;

/// Writes the manual pages, one for each command, to a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap man /usr/local/share/man/man1
  ironmap man . && man ./ironmap-cp.1")]
pub(crate) struct Args {
    /// The directory, which must exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    clap_mangen::generate_to(Cli::command(), &args.dir)
        .map_err(|error| Failure::host(args.dir.display(), error))
}
