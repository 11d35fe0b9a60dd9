//! The `ironmap` program. Its commands access files of unmounted volumes, and read files of mounted file systems.

mod acl;
mod bench;
mod canonical;
mod cli;
mod cmd;
mod compress;
mod console;
mod epoch;
mod failure;
mod glob;
mod host_source;
mod interrupt;
mod mode;
#[cfg(feature = "fuse")]
mod mount;
#[cfg(test)]
mod other_format;
mod output;
mod owner;
mod show;
mod target;
mod terminal;
mod whole;

use std::process::ExitCode;

use ironmap_image::opening::Opening;
use ironmap_image::{Context, Report, size};

use crate::cli::Cli;
use crate::console::Console;
use crate::failure::{exit_code, usage};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    #[cfg(feature = "fuse")]
    let args = mount::as_mount_helper(&args).unwrap_or(args);
    let renamed = cmd::tune::as_e2fsprogs(&args);
    // If the program was called by the name of a program of e2fsprogs (such as `tune2fs`), all failures have the same exit code.
    let one_code = renamed.is_some();
    let args = renamed.unwrap_or(args);
    let cli = match Cli::parse_words(args.iter().cloned()) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, &cli::path_of(&args), one_code),
    };
    let Cli { no_load, superblock, truncated, journal, realtime, command } = cli;
    let opening = Opening { no_load, superblock, truncated, journal, realtime };
    let (stop, date) = (interrupt::stop().clone(), epoch::source_date());
    let mut report = Report::new(Context::new(Box::new(Console::new()), stop, opening, date));
    if let Err(failure) = command.run(&mut report) {
        report.error(&failure);
    }
    exit_code(report.worst(), one_code)
}
