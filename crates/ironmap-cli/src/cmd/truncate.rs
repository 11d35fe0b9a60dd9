//! `ironmap truncate`: makes files longer or shorter.

use ironmap::Error;
use ironmap::fs::Follow;
use ironmap_image::new::find_or_create;
use ironmap_image::volumes::{Name, Volumes};
use ironmap_image::{Failure, Report};

use crate::size::size;
use crate::target::{self, Target};

/// Makes files longer or shorter
///
/// The added part reads as zeros and uses no space. A missing file is made.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap truncate -s 0 disk.img:/var/log/syslog
  ironmap truncate -s +1G disk.img:/swap
  ironmap truncate -s %4K disk.img:/a disk.img:/b")]
#[command(group = clap::ArgGroup::new("to").required(true).multiple(true))]
pub(crate) struct Args {
    /// Do not make missing files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// The size in bytes, with K, M, G, ... (of 1024) or KB, ... (of 1000). A sign before it: + longer by SIZE, - shorter by SIZE,
    /// < at most SIZE, > at least SIZE, / rounded down or % rounded up to a multiple of SIZE
    #[arg(short, long, value_parser = Size::parse, allow_hyphen_values = true, group = "to")]
    size: Option<Size>,
    /// Use the size of this other file; then -s must be relative
    #[arg(short, long, value_name = "VOLUME:/PATH", value_parser = target::target(), group = "to")]
    reference: Option<Target>,
    /// The files
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target(), required = true)]
    targets: Vec<Target>,
}

/// The value of -s.
#[derive(Clone, Copy, Debug)]
struct Size {
    how: How,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Exactly,
    Longer,
    Shorter,
    AtMost,
    AtLeast,
    RoundedDown,
    RoundedUp,
}

impl Size {
    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim_start();
        let how = match text.chars().next() {
            Some('+') => How::Longer,
            Some('-') => How::Shorter,
            Some('<') => How::AtMost,
            Some('>') => How::AtLeast,
            Some('/') => How::RoundedDown,
            Some('%') => How::RoundedUp,
            _ => How::Exactly,
        };
        let number = if how == How::Exactly { text } else { &text[1..] };
        let bytes = size(number)?;
        if bytes == 0 && matches!(how, How::RoundedDown | How::RoundedUp) {
            return Err("division by zero".to_owned());
        }
        Ok(Self { how, bytes })
    }

    /// The new size; `None` if it exceeds 64 bits.
    fn of(self, size: u64) -> Option<u64> {
        let bytes = self.bytes;
        match self.how {
            How::Exactly => Some(bytes),
            How::Longer => size.checked_add(bytes),
            How::Shorter => Some(size.saturating_sub(bytes)),
            How::AtMost => Some(size.min(bytes)),
            How::AtLeast => Some(size.max(bytes)),
            How::RoundedDown => Some(size / bytes * bytes),
            How::RoundedUp => size.checked_next_multiple_of(bytes),
        }
    }
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    if args.reference.is_some() && args.size.is_some_and(|size| size.how == How::Exactly) {
        return Err(Failure::usage("with --reference, -s must be a relative size"));
    }
    Volumes::change_each(&args.targets, report, |volumes, target, _| {
        let base = match &args.reference {
            Some(reference) => Some(volumes.find(reference, Follow::All)?.inode.size()),
            None => None,
        };
        resize(args, &volumes.name(target)?, base)
    })
}

fn resize(args: &Args, name: &Name, base: Option<u64>) -> Result<(), Failure> {
    let Some(inode) = find_or_create(name, !args.no_create)? else { return Ok(()) };
    let base = base.unwrap_or(inode.size());
    let size = args.size.map_or(Some(base), |size| size.of(base));
    let resized = match size {
        Some(size) => name.fs().writable().and_then(|writer| writer.truncate(inode.number(), size)),
        None => Err(Error::invalid("the size exceeds 64 bits")),
    };
    resized.map_err(|error| name.failed(&error))
}

#[cfg(test)]
mod tests {
    use super::Size;

    /// The expected sizes are the results of `truncate` of coreutils 9.1 for a file of 10 bytes.
    #[test]
    fn sizes_are_absolute_or_relative() {
        for (text, expected) in [
            ("1K", 1024),
            ("+1KB", 1010),
            ("<5", 5),
            (">7", 10),
            ("/4", 8),
            ("%4", 12),
            ("-2000", 0),
            ("-3", 7),
        ] {
            assert_eq!(Size::parse(text).unwrap().of(10), Some(expected), "{text}");
        }
        for wrong in ["/0", "%0", "x", "", "+", "0x10"] {
            assert!(Size::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Size::parse("+1").unwrap().of(u64::MAX), None);
    }
}
