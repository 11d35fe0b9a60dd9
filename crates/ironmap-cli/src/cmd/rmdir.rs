//! `ironmap rmdir`: removes empty directories.

use ironmap::ErrorKind;
use ironmap_image::quote::quoted;
use ironmap_image::volumes::{Volumes, split};
use ironmap_image::{Failure, Report};

use crate::target::{self, Target};

/// Removes empty directories
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap rmdir disk.img:/lost+found
  ironmap rmdir -p disk.img:/a/b/c")]
pub(crate) struct Args {
    /// Also remove the parent directories, as long as they are empty
    #[arg(short, long)]
    parents: bool,
    /// Ignore directories that are not empty
    #[arg(long)]
    ignore_fail_on_non_empty: bool,
    /// Print each removed directory
    #[arg(short, long)]
    verbose: bool,
    /// The directories
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target(), required = true)]
    targets: Vec<Target>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    Volumes::change_each(&args.targets, report, |volumes, target, report| {
        let mut target = target.clone();
        loop {
            if args.verbose {
                let shown = quoted(&target.bytes());
                report.say(format_args!("rmdir: removing directory, {shown}"))?;
            }
            let name = volumes.name(&target)?;
            match name.fs().writable().and_then(|writer| writer.rmdir(name.dir, &name.name)) {
                Ok(()) => {}
                Err(error)
                    if args.ignore_fail_on_non_empty && error.kind() == ErrorKind::NotEmpty =>
                {
                    return Ok(());
                }
                Err(error) => return Err(name.failed(&error)),
            }
            let (above, _) = split(&target.path);
            if !args.parents || above.iter().all(|byte| *byte == b'/') {
                return Ok(());
            }
            target.path = above.to_vec();
        }
    })
}
