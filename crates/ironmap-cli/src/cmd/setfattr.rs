//! `ironmap setfattr`: sets and removes extended attributes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::builder::{OsStringValueParser, TypedValueParser};
use ironmap::fs::{Follow, SetXattr};
use ironmap_image::volumes::Volumes;
use ironmap_image::{Failure, Report};

use crate::target::{self, Target};

/// Sets or removes an extended attribute of files
///
/// A value is text. Text in double quotes may contain \ooo (a byte in octal), \\ and \". 0x... is hexadecimal, and 0s... is base64.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  ironmap setfattr -n user.origin -v https://example.org disk.img:/srv/data
  ironmap setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 disk.img:/bin/ping
  ironmap setfattr -x user.origin disk.img:/srv/data"
)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub(crate) struct Args {
    /// The attribute to set, with its prefix: user., trusted., security., system.
    #[arg(short, long, group = "what")]
    name: Option<OsString>,
    /// The value; empty by default
    #[arg(short, long, value_parser = value(), requires = "name")]
    value: Option<Value>,
    /// The attribute to remove
    #[arg(short = 'x', long, value_name = "NAME", group = "what")]
    remove: Option<OsString>,
    /// Change symbolic links, not their targets
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The files
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target(), required = true)]
    targets: Vec<Target>,
}

/// An attribute's value.
#[derive(Clone, Debug)]
struct Value(Vec<u8>);

fn value() -> impl TypedValueParser<Value = Value> {
    OsStringValueParser::new().try_map(|text: OsString| parse_value(&text).map(Value))
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let follow = if args.no_dereference { Follow::NotLast } else { Follow::All };
    let value = args.value.as_ref().map_or(&[][..], |value| &value.0);
    Volumes::change_each(&args.targets, report, |volumes, target, _| {
        let found = volumes.find(target, follow)?;
        let (fs, number) = (found.fs(), found.number());
        let done = match (&args.name, &args.remove) {
            (Some(name), _) => fs
                .writable()
                .and_then(|writer| writer.setxattr(number, name.as_bytes(), value, SetXattr::Any)),
            (None, Some(name)) => {
                fs.writable().and_then(|writer| writer.removexattr(number, name.as_bytes()))
            }
            (None, None) => Ok(()),
        };
        done.map_err(|error| found.failed(&error))
    })
}

fn parse_value(text: &OsStr) -> Result<Vec<u8>, String> {
    let bytes = text.as_bytes();
    match bytes {
        [b'0', b'x' | b'X', digits @ ..] => hexadecimal(digits),
        [b'0', b's' | b'S', digits @ ..] => base64(digits),
        [b'"', text @ .., b'"'] => unquoted(text),
        text => return Ok(text.to_vec()),
    }
    .ok_or_else(|| format!("bad input encoding: '{}'", text.display()))
}

fn hexadecimal(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = digits.as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8));
    rest.is_empty().then(|| bytes.collect())?
}

fn base64(digits: &[u8]) -> Option<Vec<u8>> {
    let end = digits.iter().rposition(|digit| *digit != b'=').map_or(0, |last| last + 1);
    let digits = &digits[..end];
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for chunk in digits.chunks(4) {
        let mut word = 0;
        for digit in chunk {
            word = word << 6 | sextet(*digit)?;
        }
        let have = chunk.len() * 6 / 8;
        if have == 0 {
            return None;
        }
        word <<= 6 * (4 - chunk.len());
        bytes.extend_from_slice(&word.to_be_bytes()[1..=have]);
    }
    Some(bytes)
}

fn sextet(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

fn unquoted(mut text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    while let Some((first, rest)) = text.split_first() {
        text = rest;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let octal = text.iter().take(3).take_while(|digit| matches!(digit, b'0'..=b'7')).count();
        if octal > 0 {
            let value =
                text[..octal].iter().fold(0, |value, digit| value << 3 | u32::from(digit - b'0'));
            bytes.push(u8::try_from(value).ok()?);
            text = &text[octal..];
        } else {
            let (escaped, rest) = text.split_first()?;
            bytes.push(*escaped);
            text = rest;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// setfattr has set the values. The expected values are the output of getfattr 2.5.
    #[test]
    fn values_are_text_numbers_or_quoted() {
        let parse = |text: &str| parse_value(OsStr::new(text));
        assert_eq!(parse("plain\\x"), Ok(b"plain\\x".to_vec()));
        assert_eq!(parse("0x00fF10"), Ok(vec![0, 0xFF, 0x10]));
        assert_eq!(parse("0sAP8Q"), Ok(vec![0, 0xFF, 0x10]));
        assert_eq!(parse("0sAP8="), Ok(vec![0, 0xFF]));
        assert_eq!(parse("0sAA=="), Ok(vec![0]));
        assert_eq!(parse(r#""a\000\"\\b""#), Ok(b"a\0\"\\b".to_vec()));
        assert_eq!(parse(""), Ok(Vec::new()));
        for wrong in ["0x0", "0xzz", "0sA", "0s*", r#""\777""#] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
