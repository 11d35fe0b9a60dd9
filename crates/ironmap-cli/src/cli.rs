//! The command line: the subcommands and what their help has in common.

use clap::{Parser, Subcommand};

use crate::bench;
use crate::cmd::{
    cat, chattr, check, chmod, chown, completions, cp, demo, fallocate, host, info, integrity, ln,
    ls, man, map, mkdir, mkfs, mv, rm, rmdir, setfattr, stat, sync, touch, truncate,
};
use crate::failure::{Failure, Report};
#[cfg(feature = "fuse")]
use crate::mount;

const AFTER_HELP: &str = "\
VOLUME is a block device, an image, IMAGE@OFFSET (decimal or 0x..., with an optional K, M or G) or IMAGE@pN, its Nth GPT or \
MBR partition. VOLUME:/PATH names a file of it; everything before the first ':/' is the volume.

integrity:DATA,TAGS is a volume too: DATA is a device or image whose every sector is verified against its tag on TAGS, and both may be \
partitions. integrity:DATA has the tags in its own tail; ironmap integrity makes and checks them.

noload:VOLUME is read without its journal, which may be damaged or gone; the option --noload says the same of every volume.

host:FILE is a file of a mounted file system. It is read around the kernel where that is safe, and through it otherwise; ironmap \
host tells which. A volume named host is written ./host.

Commands that only read write nothing: a volume that was not unmounted cleanly is recovered in memory. Commands that change a volume \
recover it on the device, work as their namesakes do on a mounted one, and end with everything on the device; when one is killed \
instead, the journal keeps the volume consistent. Permissions are not looked at: who may write the device may change every file.

Exit codes:
  0  success
  1  an operation failed: a missing file, a directory given to cat, a device error
  2  the command line is wrong
  3  the volume cannot be used: missing, in use, unsupported, or of another format
  4  the volume is corrupt
  130  interrupted by Ctrl-C (143: SIGTERM, 129: SIGHUP) while changing a volume, which was closed cleanly

Where several things fail, each has a line on standard error, and the highest code is given.";

/// Reads and changes files of ext2, ext3 and ext4 volumes that are not mounted, and reads those of mounted ext4 and XFS, at the speed
/// of the device.
#[derive(Debug, Parser)]
#[command(name = "ironmap", version, propagate_version = true, after_help = AFTER_HELP)]
#[command(max_term_width = 100, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Read volumes without their journals, as mount -o ro,noload: what these hold is missing
    #[arg(long = "noload", global = true)]
    pub(crate) no_load: bool,
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
    Integrity(integrity::Args),
    Cp(cp::Args),
    Mkfs(Box<mkfs::Args>),
    Mkdir(mkdir::Args),
    Rmdir(rmdir::Args),
    Rm(rm::Args),
    Mv(mv::Args),
    Ln(ln::Args),
    Touch(touch::Args),
    Truncate(truncate::Args),
    Fallocate(fallocate::Args),
    Chmod(chmod::Args),
    Chown(chown::Args),
    Chattr(chattr::Args),
    Setfattr(setfattr::Args),
    Sync(sync::Args),
    #[cfg(feature = "fuse")]
    Mount(mount::Args),
    #[cfg(feature = "fuse")]
    Umount(mount::UnmountArgs),
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
            Self::Integrity(args) => integrity::run(args, report),
            Self::Cp(args) => cp::run(args, report),
            Self::Mkfs(args) => mkfs::run(args, report),
            Self::Mkdir(args) => mkdir::run(args, report),
            Self::Rmdir(args) => rmdir::run(args, report),
            Self::Rm(args) => rm::run(args, report),
            Self::Mv(args) => mv::run(args, report),
            Self::Ln(args) => ln::run(args, report),
            Self::Touch(args) => touch::run(args, report),
            Self::Truncate(args) => truncate::run(args, report),
            Self::Fallocate(args) => fallocate::run(args, report),
            Self::Chmod(args) => chmod::run(args, report),
            Self::Chown(args) => chown::run(args, report),
            Self::Chattr(args) => chattr::run(args, report),
            Self::Setfattr(args) => setfattr::run(args, report),
            Self::Sync(args) => sync::run(args, report),
            #[cfg(feature = "fuse")]
            Self::Mount(args) => mount::run(args, report),
            #[cfg(feature = "fuse")]
            Self::Umount(args) => mount::unmount(args),
            Self::Bench(args) => bench::run(args),
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
