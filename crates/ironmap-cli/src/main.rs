//! The `ironmap` program: files of unmounted ext4 volumes, and of mounted file systems, from the command line.

mod acl;
mod ahead;
mod archive;
mod bench;
mod canonical;
mod cli;
mod cmd;
mod epoch;
mod failure;
mod glob;
mod host_stat;
mod host_tree;
mod interrupt;
mod mode;
#[cfg(feature = "fuse")]
mod mount;
mod needs;
mod new;
#[cfg(test)]
mod other_format;
mod output;
mod owner;
mod owners;
mod progress;
mod room;
mod show;
mod size;
mod source;
mod spared;
mod target;
mod terminal;
mod transfer;
mod volumes;
mod walk;
mod whole;

use std::process::ExitCode;

use crate::cli::Cli;
use crate::failure::{Report, usage};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    #[cfg(feature = "fuse")]
    let args = mount::as_mount_helper(&args).unwrap_or(args);
    let args = match cmd::tune::as_e2fsprogs(&args) {
        Some(words) => {
            failure::set_one_code();
            words
        }
        None => args,
    };
    let cli = match Cli::parse_words(args.iter().cloned()) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, &cli::path_of(&args)),
    };
    if cli.no_load {
        source::set_no_load();
    }
    let Cli { superblock, truncated, ref journal, ref realtime, .. } = cli;
    let (journal, realtime) = (journal.clone(), realtime.clone());
    source::set_rescue(source::Rescue { superblock, truncated, journal, realtime });
    let mut report = Report::default();
    if let Err(failure) = cli.command.run(&mut report) {
        report.error(&failure);
    }
    report.exit_code()
}
