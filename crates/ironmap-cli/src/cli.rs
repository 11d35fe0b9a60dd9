//! The command line: the subcommands and what their help has in common.

use clap::{Parser, Subcommand};

use crate::bench;
use crate::cmd::{cat, check, completions, cp, demo, host, info, ls, man, map, mkfs, stat};
use crate::failure::{Failure, Report};

const AFTER_HELP: &str = "\
VOLUME is a block device, an image, IMAGE@OFFSET (decimal or 0x..., with an optional K, M or G) or IMAGE@pN, its Nth GPT or \
MBR partition. VOLUME:/PATH names a file of it; everything before the first ':/' is the volume.

host:FILE is a file of a mounted file system. It is read around the kernel where that is safe, and through it otherwise; ironmap \
host tells which. A volume named host is written ./host.

mkfs makes a volume; nothing else is ever written to one. One that was not unmounted cleanly is recovered in memory.

Exit codes:
  0  success
  1  an operation failed: a missing file, a directory given to cat, a device error
  2  the command line is wrong
  3  the volume cannot be used: missing, in use, unsupported, or of another format
  4  the volume is corrupt

Where several things fail, each has a line on standard error, and the highest code is given.";

/// Reads files of ext2, ext3 and ext4 volumes that are not mounted, and of mounted ext4 and XFS, at the speed of the device.
#[derive(Debug, Parser)]
#[command(name = "ironmap", version, propagate_version = true, after_help = AFTER_HELP)]
#[command(max_term_width = 100, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Info(info::Args),
    Ls(ls::Args),
    Stat(stat::Args),
    Cat(cat::Args),
    Map(map::Args),
    Host(host::Args),
    Check(check::Args),
    Cp(cp::Args),
    Mkfs(Box<mkfs::Args>),
    Bench(Box<bench::BenchArgs>),
    Demo(demo::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Command {
    /// Runs the command. What it survives goes to the report; what ends it is returned.
    pub(crate) fn run(&self, report: &mut Report) -> Result<(), Failure> {
        match self {
            Self::Info(args) => info::run(args),
            Self::Ls(args) => ls::run(args, report),
            Self::Stat(args) => stat::run(args),
            Self::Cat(args) => cat::run(args, report),
            Self::Map(args) => map::run(args),
            Self::Host(args) => host::run(args, report),
            Self::Check(args) => check::run(args, report),
            Self::Cp(args) => cp::run(args, report),
            Self::Mkfs(args) => mkfs::run(args),
            Self::Bench(args) => bench::run(args).map_err(|error| Failure::at("bench", &error)),
            Self::Demo(args) => demo::run(args, report),
            Self::Completions(args) => completions::run(args),
            Self::Man(args) => man::run(args),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_examples() {
        let mut command = Cli::command();
        command.build();
        command.clone().debug_assert();
        for sub in command.get_subcommands() {
            let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  ironmap "), "{} has no examples", sub.get_name());
        }
    }
}
