//! Failures as the program shows them: lines on standard error, and the exit code.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind as ClapKind};
use ironmap::ErrorKind;
use ironmap_image::room::Overwrite;
use ironmap_image::{Failure, Reason};

use crate::terminal::one_line;

/// Returns the exit code of the worst failure. The help of the program and docs/CLI.md describe the exit codes. If `one_code` is true, each
/// failure has code 1, as in the programs of e2fsprogs.
pub(crate) fn exit_code(worst: Option<Reason>, one_code: bool) -> ExitCode {
    let code = match worst {
        None | Some(Reason::Unread) => 0,
        // The exit code that shells use for a process that a signal ended.
        Some(Reason::Stopped(signal)) => 128 + signal as u8,
        Some(_) if one_code => 1,
        Some(reason) => of_failure(reason),
    };
    ExitCode::from(code)
}

fn of_failure(reason: Reason) -> u8 {
    match reason {
        Reason::Usage => 2,
        Reason::Refused => 3,
        Reason::Corrupt => 4,
        _ => 1,
    }
}

/// Prints a message on standard error, as one line. If standard error is closed, the program continues, and its exit code does not change.
pub(crate) fn print(message: impl Display) {
    let _ = writeln!(io::stderr(), "ironmap: {}", one_line(&message.to_string()));
}

/// A failure that another process has already reported. The process ended with this exit code.
pub(crate) fn reported(code: i32) -> Failure {
    let reasons = [Reason::Usage, Reason::Refused, Reason::Corrupt];
    let reason = reasons.into_iter().find(|known| i32::from(of_failure(*known)) == code);
    Failure::with(reason.unwrap_or(Reason::Failed), "")
}

/// Prints the output of the command line's parser. The help and the version are printed unchanged. An error becomes one line with a hint to
/// the command's help.
pub(crate) fn usage(error: &clap::Error, command: &str, one_code: bool) -> ExitCode {
    if matches!(error.kind(), ClapKind::DisplayHelp | ClapKind::DisplayVersion) {
        let printed = error.print().and_then(|()| io::stdout().flush()).map_err(Failure::stdout);
        let failure = printed.err().filter(|failure| !failure.is_unread());
        if let Some(failure) = &failure {
            print(failure);
        }
        return exit_code(failure.map(|failure| failure.reason()), one_code);
    }
    if error.kind() == ClapKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return misused("a command is missing", command, one_code);
    }
    let text = error.to_string();
    let message = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    let message = match (error.kind(), error.get(ContextKind::ValidSubcommand)) {
        (ClapKind::MissingSubcommand, Some(ContextValue::Strings(names))) => {
            format!("a command is missing: one of {}", names.join(", "))
        }
        (ClapKind::MissingRequiredArgument, _) => {
            let usage = text.lines().find_map(|line| line.strip_prefix("Usage: "));
            match (error.get(ContextKind::InvalidArg), usage) {
                (Some(ContextValue::Strings(missing)), Some(usage)) => {
                    format!("missing {}: write {usage}", missing.join(" "))
                }
                _ => message.to_owned(),
            }
        }
        _ => message.to_owned(),
    };
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    misused(&one_line(&message), command, one_code)
}

fn misused(what: &str, command: &str, one_code: bool) -> ExitCode {
    print(format_args!("{what}; see {command} --help"));
    exit_code(Some(Reason::Usage), one_code)
}

/// The hint in messages. It names the option with which a command overwrites a device that is not empty.
pub(crate) const FORCED: &str = "-F overwrites it";

/// Adds a hint to the failure if the cause is a device or a file that is not empty, or a member of an array or of a volume group.
pub(crate) fn hint_at(instead: &str) -> impl Fn(Failure) -> Failure {
    move |failure| match failure.is_of(ErrorKind::Exists) {
        true => failure.because(instead),
        false if failure.is_of_member() => failure.because("-F -F overwrites it"),
        false => failure,
    }
}

/// The content that a command overwrites, if `-F` is given this number of times.
pub(crate) fn overwrite(forces: u8) -> Overwrite {
    match forces {
        0 => Overwrite::Unknown,
        1 => Overwrite::Content,
        _ => Overwrite::Members,
    }
}
