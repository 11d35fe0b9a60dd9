//! `ironmap tune`: changes settings in the superblock of a volume and its backups.

mod namesakes;

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use ironmap::fs::ext4::{HashAlgorithm, NewUuid, OnError, Reserved, TuneOptions};
use ironmap::location::LocationOptions;
use ironmap::{Engine, ErrorKind, Location};
use ironmap_image::failure::named;
use ironmap_image::source::Source;
use ironmap_image::{Failure, Report};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use self::namesakes::Refused;
pub(crate) use self::namesakes::as_e2fsprogs;
use crate::cmd::info;
use crate::cmd::mkfs::parse_uuid;
use crate::owner::Ownership;
use crate::target;
use crate::terminal::stdout;

/// Changes the label, the UUID and other settings of a volume, as tune2fs does
///
/// Only the superblock and its backups are written. A volume that was not unmounted cleanly is recovered first. If the program is called as
/// tune2fs or e2label (by a link with that name), it accepts the options of that program. It refuses some of them by name. If an option is
/// repeated, the last value counts; -o and -O can be given only once.
#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
#[command(after_help = "\
Examples:
  ironmap tune -L data /dev/sdb1
  ironmap tune -U random -O metadata_csum_seed disk.img@p1
  ironmap tune -m 1 -c 30 -i 6m -e remount-ro disk.img
  ironmap tune -o acl,^user_xattr -E stride=16,stripe_width=64 disk.img
  ironmap tune -l disk.img")]
pub(crate) struct Args {
    /// The label, at most 16 bytes
    #[arg(short = 'L', long)]
    label: Option<OsString>,
    /// The UUID: random, time, clear, or a UUID
    #[arg(short = 'U', long, value_parser = parse_new_uuid)]
    uuid: Option<NewUuid>,
    /// The reaction to corruption: continue, remount-ro or panic
    #[arg(short = 'e', long = "errors", value_name = "BEHAVIOR")]
    on_error: Option<OnError>,
    /// The percentage of the blocks that is reserved for the superuser: 0 to 50
    #[arg(short = 'm', long, value_name = "PERCENT", allow_hyphen_values = true)]
    reserved: Option<f64>,
    /// The number of reserved blocks; overrides -m
    #[arg(short, long, value_name = "COUNT", allow_hyphen_values = true)]
    reserved_blocks: Option<u64>,
    /// A user (name or number) who may also use the reserved blocks
    #[arg(short = 'u', long, value_name = "USER", value_parser = parse_user, allow_hyphen_values = true)]
    reserved_user: Option<u16>,
    /// A group (name or number) that may also use the reserved blocks
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = parse_group, allow_hyphen_values = true)]
    reserved_group: Option<u16>,
    /// Check the volume after this number of mounts; 0 or a negative number for never
    #[arg(short = 'c', long, value_name = "COUNT", value_parser = parse_max_mounts, allow_hyphen_values = true)]
    max_mount_count: Option<u16>,
    /// Set the number of mounts since the last check
    #[arg(short = 'C', long, value_name = "COUNT", allow_hyphen_values = true)]
    mount_count: Option<u16>,
    /// Check the volume after this number of days, or weeks (w), months of 30 days (m) or seconds (s); 0 for never
    #[arg(short = 'i', long, value_name = "TIME", value_parser = parse_interval, allow_hyphen_values = true)]
    check_interval: Option<u32>,
    /// The time of the last check: now, or YYYYMMDD, YYYYMMDDHH, YYYYMMDDHHMM or YYYYMMDDHHMMSS in local time
    #[arg(short = 'T', long, value_name = "TIME", value_parser = parse_checked)]
    last_checked: Option<Checked>,
    /// The directory where the volume was last mounted
    #[arg(short = 'M', long, value_name = "DIR")]
    last_mounted: Option<OsString>,
    /// Default mount options to switch on (or off, with a ^ before the name), separated by commas
    #[arg(short = 'o', long, value_name = "OPTION,...", value_parser = parse_names)]
    mount_options: Vec<List<String>>,
    /// Extended options: hash_alg=legacy|half_md4|tea, stride=BLOCKS, stripe_width=BLOCKS, mount_opts=TEXT
    #[arg(short = 'E', long, value_name = "NAME=VALUE,...", value_parser = parse_all_extended)]
    extended: Vec<List<Extended>>,
    /// Features to switch on (or off, with a ^ before the name), separated by commas; only features that need no other change
    #[arg(short = 'O', long, value_name = "FEATURE,...", value_parser = parse_names)]
    features: Vec<List<String>>,
    /// Print the output of info, after all changes
    #[arg(short, long)]
    list: bool,
    /// Print only the label, as e2label does
    #[arg(long)]
    show_label: bool,
    /// Shorten texts that are too long, as the programs of e2fsprogs do
    #[arg(long, hide = true)]
    cut: bool,
    #[command(flatten)]
    refused: Refused,
    /// The volume
    #[arg(value_name = "VOLUME", value_parser = target::volume())]
    volume: Location,
}

/// The values of one option, separated by commas.
#[derive(Clone, Debug)]
struct List<T>(Vec<T>);

/// The sizes in bytes of two superblock fields: the label and the directory of the last mount.
const LABEL: usize = 16;
const LAST_MOUNTED: usize = 64;

#[derive(Clone, Copy, Debug)]
enum Checked {
    Now,
    At(i64),
}

#[derive(Clone, Debug)]
enum Extended {
    Hash(HashAlgorithm),
    Stride(u16),
    StripeWidth(u32),
    MountOptions(Vec<u8>),
}

pub(crate) fn run(args: &Args, report: &Report) -> Result<(), Failure> {
    args.refused.check()?;
    for (option, given) in [("-o", args.mount_options.len()), ("-O", args.features.len())] {
        if given > 1 {
            return Err(Failure::usage(format_args!(
                "{option}: the option may be given only once, with commas between the values"
            )));
        }
    }
    if args.changes_something() {
        change(args, report)?;
    } else if !args.list && !args.show_label {
        return Err(Failure::usage("nothing to change: see ironmap tune --help"));
    }
    if args.show_label {
        show_label(&args.volume, report)?;
    }
    if args.list { info::run(&info::Args::of(&args.volume), report) } else { Ok(()) }
}

fn show_label(volume: &Location, report: &Report) -> Result<(), Failure> {
    let source = Source::open(volume, report.context())?;
    let mut out = stdout();
    out.write_all(&out.shown(&source.ext4()?.superblock().label))?;
    writeln!(out)?;
    Ok(out.flush()?)
}

fn change(args: &Args, report: &Report) -> Result<(), Failure> {
    let context = report.context();
    context.check_changes(&args.volume)?;
    let time = context.source_date()?;
    let clock = context.clock()?;
    let options = args.options(time);
    if args.cut && args.label.as_ref().is_some_and(|label| label.len() > LABEL) {
        report.warning(format_args!("the label is too long and is truncated to {LABEL} bytes"));
    }
    let how = LocationOptions::new().engine(Engine::Psync).write(true);
    let opened = context.open_device(&args.volume, &how).map_err(|error| Failure::open(&error))?;
    let tuned = ironmap::tools::tune(&opened.device, &options, clock).map_err(|error| {
        let asked = error.kind() == ErrorKind::InvalidInput;
        let error = named(&args.volume, error);
        if asked { Failure::usage(&error) } else { Failure::open(&error) }
    });
    let closed = opened.integrity.map_or(Ok(()), |integrity| integrity.device.close());
    tuned?;
    closed.map_err(|error| Failure::at(&args.volume, &error))
}

impl Args {
    fn changes_something(&self) -> bool {
        let Self { label, uuid, on_error, reserved, reserved_blocks, .. } = self;
        let Self { reserved_user, reserved_group, max_mount_count, mount_count, .. } = self;
        let Self { check_interval, last_checked, last_mounted, .. } = self;
        let lists = [self.mount_options.len(), self.features.len(), self.extended.len()];
        label.is_some()
            || uuid.is_some()
            || on_error.is_some()
            || reserved.is_some()
            || reserved_blocks.is_some()
            || reserved_user.is_some()
            || reserved_group.is_some()
            || max_mount_count.is_some()
            || mount_count.is_some()
            || check_interval.is_some()
            || last_checked.is_some()
            || last_mounted.is_some()
            || lists.iter().any(|len| *len > 0)
    }

    /// Returns the requested changes. `time` is the value of `SOURCE_DATE_EPOCH`, if it is set.
    fn options(&self, time: Option<i64>) -> TuneOptions {
        let bytes = |text: &Option<OsString>, most: usize| {
            let bytes = text.as_ref()?.as_bytes();
            Some(if self.cut { &bytes[..bytes.len().min(most)] } else { bytes }.to_vec())
        };
        let all = |lists: &[List<String>]| lists.iter().flat_map(|list| list.0.clone()).collect();
        let mut options = TuneOptions::new()
            .label(bytes(&self.label, LABEL))
            .uuid(self.uuid)
            .last_mounted(bytes(&self.last_mounted, LAST_MOUNTED))
            .on_error(self.on_error)
            .reserved(
                self.reserved_blocks.map(Reserved::Blocks).or(self.reserved.map(Reserved::Percent)),
            )
            .reserved_uid(self.reserved_user)
            .reserved_gid(self.reserved_group)
            .max_mount_count(self.max_mount_count)
            .mount_count(self.mount_count)
            .check_interval(self.check_interval)
            .last_checked(self.last_checked.map(|checked| match checked {
                Checked::At(seconds) => seconds,
                Checked::Now => time.unwrap_or_else(|| jiff::Timestamp::now().as_second()),
            }))
            .mount_options(all(&self.mount_options))
            .features(all(&self.features));
        for extended in self.extended.last().iter().flat_map(|list| &list.0) {
            match extended {
                Extended::Hash(hash) => options.hash = Some(*hash),
                Extended::Stride(blocks) => options.stride = Some(*blocks),
                Extended::StripeWidth(blocks) => options.stripe_width = Some(*blocks),
                Extended::MountOptions(text) => options.mount_options_text = Some(text.clone()),
            }
        }
        options
    }
}

fn parse_new_uuid(text: &str) -> Result<NewUuid, String> {
    Ok(match text {
        "random" => NewUuid::Random,
        "time" => NewUuid::Time,
        "clear" | "null" => NewUuid::Clear,
        _ => NewUuid::Is(parse_uuid(text)?),
    })
}

/// Parses a user. The superblock has 16 bits for the user's number.
fn parse_user(text: &str) -> Result<u16, String> {
    let uid = Ownership::parse(text)?.uid.filter(|_| !text.contains(':'));
    uid.and_then(|uid| uid.try_into().ok())
        .ok_or_else(|| format!("'{text}' is not a user ID up to 65535"))
}

fn parse_group(text: &str) -> Result<u16, String> {
    let gid = Ownership::parse(&format!(":{text}"))?.gid;
    gid.and_then(|gid| gid.try_into().ok())
        .ok_or_else(|| format!("'{text}' is not a group ID up to 65535"))
}

fn parse_max_mounts(text: &str) -> Result<u16, String> {
    let count = text.parse().ok().filter(|count| (-MOST_MOUNTS..=u16::MAX.into()).contains(count));
    let count = count.map(|count: i32| count.max(0).try_into().unwrap_or(u16::MAX));
    count.ok_or_else(|| format!("'{text}' is not a number of mounts"))
}

/// The highest number of mounts that tune2fs accepts. The same limit applies to the absolute value of a negative number.
const MOST_MOUNTS: i32 = 16_000;

fn parse_interval(text: &str) -> Result<u32, String> {
    const DAY: u32 = 86400;
    let (digits, unit) = match text.as_bytes().last().map(u8::to_ascii_lowercase) {
        Some(b's') => (&text[..text.len() - 1], 1),
        Some(b'd') => (&text[..text.len() - 1], DAY),
        Some(b'w') => (&text[..text.len() - 1], 7 * DAY),
        Some(b'm') => (&text[..text.len() - 1], 30 * DAY),
        _ => (text, DAY),
    };
    let count = digits.parse::<u32>().ok();
    let seconds = count.and_then(|count| count.checked_mul(unit));
    seconds.ok_or_else(|| format!("'{text}' is not an interval up to {} seconds", u32::MAX))
}

fn parse_checked(text: &str) -> Result<Checked, String> {
    if text == "now" {
        return Ok(Checked::Now);
    }
    let wrong = || format!("'{text}' is neither now nor YYYYMMDD[HH[MM[SS]]]");
    if !matches!(text.len(), 8 | 10 | 12 | 14) || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let digits = format!("{text:0<14}");
    let local = DateTime::strptime("%Y%m%d%H%M%S", digits).map_err(|_| wrong())?;
    let zoned = local.to_zoned(TimeZone::system()).map_err(|_| wrong())?;
    Ok(Checked::At(zoned.timestamp().as_second()))
}

fn parse_names(text: &str) -> Result<List<String>, String> {
    Ok(List(text.split(',').map(str::to_owned).collect()))
}

fn parse_all_extended(text: &str) -> Result<List<Extended>, String> {
    text.split(',').map(parse_extended).collect::<Result<_, _>>().map(List)
}

fn parse_extended(text: &str) -> Result<Extended, String> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    let wrong = |what: String| format!("{name}: {what}");
    let number = |_| wrong(format!("'{value}' is not a number of blocks"));
    match name {
        "hash_alg" => value
            .parse()
            .map(Extended::Hash)
            .map_err(|error: ironmap::Error| wrong(error.to_string())),
        "stride" => value.parse().map(Extended::Stride).map_err(number),
        "stripe_width" | "stripe-width" => value.parse().map(Extended::StripeWidth).map_err(number),
        "mount_opts" => Ok(Extended::MountOptions(value.as_bytes().to_vec())),
        _ => Err(format!(
            "{name} is not one of hash_alg, stride, stripe_width, mount_opts: use tune2fs -E"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected numbers are those that `tune2fs -i` stores.
    #[test]
    fn an_interval_has_the_units_of_tune2fs() {
        for (text, seconds) in [
            ("3", 259_200),
            ("2d", 172_800),
            ("3w", 1_814_400),
            ("2m", 5_184_000),
            ("5s", 5),
            ("10D", 864_000),
            ("1W", 604_800),
            ("0", 0),
        ] {
            assert_eq!(parse_interval(text), Ok(seconds), "{text}");
        }
        for wrong in ["", "d", "2h", "-1", "99999999"] {
            assert!(parse_interval(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_time_is_now_or_has_pairs_of_digits_down_to_seconds() {
        for right in ["now", "20200102", "2020010213", "202001021314", "20200102131415"] {
            assert!(parse_checked(right).is_ok(), "{right}");
        }
        for wrong in ["", "2020", "2020010", "20201302", "20200102x", "202001021"] {
            assert!(parse_checked(wrong).is_err(), "{wrong}");
        }
    }
}
