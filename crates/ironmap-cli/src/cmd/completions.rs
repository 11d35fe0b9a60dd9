//! `ironmap completions`: completion scripts for shells.

use std::io::Write;

use clap_complete::Shell;

use crate::failure::Failure;
use crate::output::stdout;

/// Writes a completion script for a shell to standard output
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap completions bash > /etc/bash_completion.d/ironmap
  ironmap completions fish > ~/.config/fish/completions/ironmap.fish")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// `program` is the whole command line.
pub(crate) fn run(args: &Args, mut program: clap::Command) -> Result<(), Failure> {
    // The generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "ironmap", &mut script);
    let mut out = stdout();
    out.write_all(&script)?;
    Ok(out.flush()?)
}
