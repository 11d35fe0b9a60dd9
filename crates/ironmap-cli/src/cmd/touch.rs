//! `ironmap touch`: sets timestamps.

use std::time::{SystemTime, UNIX_EPOCH};

use ironmap::fs::{Follow, SetAttributes, Timestamp};
use ironmap_image::new::find_or_create;
use ironmap_image::volumes::Volumes;
use ironmap_image::{Failure, Report};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::target::{self, Target};

/// Sets the times of files, and makes missing files
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  ironmap touch disk.img:/forcefsck
  ironmap touch -d 2026-01-01T00:00:00Z disk.img:/a disk.img:/b
  ironmap touch -m -r disk.img:/a disk.img:/b"
)]
pub(crate) struct Args {
    /// Set only the time of the last access
    #[arg(short)]
    access: bool,
    /// Set only the time of the last modification
    #[arg(short)]
    modification: bool,
    /// Do not make missing files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Change symbolic links, not their targets
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Set this time: @SECONDS[.FRACTION] or 2026-11-21T10:05:00Z; without a zone, local time
    #[arg(short, long, value_name = "TIME", value_parser = parse_time, conflicts_with = "reference")]
    date: Option<Timestamp>,
    /// Set the times of this file
    #[arg(short, long, value_name = "VOLUME:/PATH", value_parser = target::target())]
    reference: Option<Target>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The files
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target(), required = true)]
    targets: Vec<Target>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let time = args.date.map_or_else(|| now(report), Ok)?;
    let both = args.access == args.modification;
    let chosen = args.date.is_some() || args.reference.is_some();
    Volumes::change_each(&args.targets, report, |volumes, target, _| {
        let (mut accessed, mut modified) = (time, time);
        if let Some(reference) = &args.reference {
            let found = volumes.find(reference, Follow::All)?;
            (accessed, modified) = (found.inode.stat().accessed, found.inode.stat().modified);
        }
        let name = volumes.name(target)?;
        let inode = match (args.no_dereference, args.no_create) {
            (false, no_create) => find_or_create(&name, !no_create)?,
            (true, true) => name.look(Follow::NotLast)?,
            // With -h, no file is made.
            (true, false) => Some(name.find(Follow::NotLast)?),
        };
        let Some(inode) = inode else { return Ok(()) };
        let set = SetAttributes::new()
            .accessed((both || args.access).then_some(accessed))
            .modified((both || args.modification).then_some(modified))
            // For an append-only file, only the current time is allowed, and only for both times at once. The kernel has the same rule.
            .times_of_use(both && !chosen);
        let set =
            name.fs().writable().and_then(|writer| writer.set_attributes(inode.number(), &set));
        set.map_err(|error| name.failed(&error))
    })
}

fn now(report: &Report) -> Result<Timestamp, Failure> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() };
    Ok(report.context().source_time()?.unwrap_or(now))
}

fn parse_time(text: &str) -> Result<Timestamp, String> {
    let wrong = || format!("invalid date: '{text}'");
    let at = if let Some(seconds) = text.strip_prefix('@') {
        return parse_seconds(seconds).ok_or_else(wrong);
    } else if let Ok(at) = text.parse::<jiff::Timestamp>() {
        at
    } else {
        let local: DateTime = text.parse().map_err(|_| wrong())?;
        local.to_zoned(TimeZone::system()).map_err(|_| wrong())?.timestamp()
    };
    // The nanoseconds of a timestamp are never negative. Before 1970, they are added to an earlier full second.
    let nanoseconds = at.as_nanosecond();
    Ok(Timestamp {
        seconds: nanoseconds.div_euclid(1_000_000_000) as i64,
        nanoseconds: nanoseconds.rem_euclid(1_000_000_000) as u32,
    })
}

/// Seconds since 1970 with an optional fraction. As in coreutils, digits below a nanosecond are rounded down.
fn parse_seconds(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once(['.', ',']).unwrap_or((text, "0"));
    let seconds: i64 = whole.parse().ok()?;
    if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (kept, lost) = fraction.split_at(fraction.len().min(9));
    let nanoseconds: u32 = format!("{kept:0<9}").parse().ok()?;
    if !whole.starts_with('-') {
        return Some(Timestamp { seconds, nanoseconds });
    }
    // The nanoseconds of a timestamp are never negative. Before 1970, they are added to an earlier full second.
    let nanoseconds = nanoseconds + u32::from(lost.bytes().any(|byte| byte != b'0'));
    let (borrow, nanoseconds) = match nanoseconds {
        0 => (0, 0),
        1_000_000_000 => (1, 0),
        nanoseconds => (1, 1_000_000_000 - nanoseconds),
    };
    Some(Timestamp { seconds: seconds.checked_sub(borrow)?, nanoseconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_zone_or_is_local() {
        let at = |seconds, nanoseconds| Ok(Timestamp { seconds, nanoseconds });
        assert_eq!(parse_time("@-5"), at(-5, 0));
        // The expected results are the output of touch of coreutils 9.1.
        assert_eq!(parse_time("@1.5"), at(1, 500_000_000));
        assert_eq!(parse_time("@+1,25"), at(1, 250_000_000));
        assert_eq!(parse_time("@1.1234567899"), at(1, 123_456_789));
        assert_eq!(parse_time("@-0.25"), at(-1, 750_000_000));
        assert_eq!(parse_time("@-1.1234567899"), at(-2, 876_543_210));
        assert_eq!(parse_time("@-1.9999999999"), at(-2, 0));
        for wrong in ["@", "@1.", "@.5", "@1.5x", "@1.-5"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_time("1970-01-01T00:00:01.5Z"), at(1, 500_000_000));
        assert_eq!(parse_time("1969-12-31T23:59:59.75Z"), at(-1, 750_000_000));
        assert!(parse_time("2026-11-21 10:05").is_ok());
        assert!(parse_time("yesterday").is_err());
    }
}
