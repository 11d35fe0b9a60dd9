//! `ironmap getfattr`: shows extended attributes.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use clap::ValueEnum;
use ironmap::fs::{Follow, Xattr};
use ironmap::sorting::Sorting;
use ironmap_image::volumes::Volumes;
use ironmap_image::{Failure, Report};
use regex_lite::Regex;

use crate::target::{self, Target};
use crate::terminal::{Out, stdout};

/// Shows the extended attributes of files
///
/// Without -d, only names are shown. A NUL at the end of a text is not shown.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  ironmap getfattr -d disk.img:/srv/data
  ironmap getfattr -d -m - -e hex disk.img:/bin/ping
  ironmap getfattr -n user.origin --only-values disk.img:/srv/data"
)]
pub(crate) struct Args {
    /// Also show values
    #[arg(short, long)]
    dump: bool,
    /// The encoding of values; by default, text is unchanged, and other bytes become base64
    #[arg(short, long, value_enum)]
    encoding: Option<Encoding>,
    /// Show the attributes whose names match this regular expression; '-' for all
    #[arg(short, long, value_name = "PATTERN", default_value = "^user\\.", value_parser = Names::parse)]
    r#match: Names,
    /// Show the value of this attribute
    #[arg(short, long, conflicts_with = "match")]
    name: Option<OsString>,
    /// Show attributes of symbolic links, not of their targets
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Show only the bytes of values
    #[arg(long)]
    only_values: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The files; a volume without a path means its root
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::tree(), required = true)]
    targets: Vec<Target>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Encoding {
    Text,
    Hex,
    Base64,
}

/// The attributes to show.
#[derive(Clone, Debug)]
enum Names {
    All,
    Matching(Regex),
}

impl Names {
    fn parse(pattern: &str) -> Result<Self, String> {
        if pattern == "-" {
            return Ok(Self::All);
        }
        Regex::new(pattern).map(Self::Matching).map_err(|error| error.to_string())
    }

    fn contain(&self, name: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Matching(regex) => regex.is_match(&String::from_utf8_lossy(name)),
        }
    }
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let follow = if args.no_dereference { Follow::NotLast } else { Follow::All };
    let mut volumes = Volumes::to_read(report.context());
    let mut out = stdout();
    report.each(&args.targets, |target, _| {
        let inode = volumes.file(target, follow)?.inode;
        let failed = |error| Failure::at(target, &error);
        let found = if let Some(name) = &args.name {
            let missing = || {
                Failure::new(format!("{target}: {}: no such attribute (ENODATA)", name.display()))
            };
            let value = inode.xattr(name.as_bytes()).map_err(failed)?.ok_or_else(missing)?;
            vec![Xattr { name: name.as_bytes().to_vec(), value }]
        } else {
            let mut all = inode.xattrs().map_err(failed)?;
            all.retain(|xattr| args.r#match.contain(&xattr.name));
            all.order_by(|a, b| a.name.cmp(&b.name));
            all
        };
        Ok(print(args, target, &found, &mut out)?)
    })?;
    Ok(out.flush()?)
}

fn print(args: &Args, target: &Target, found: &[Xattr], out: &mut Out) -> std::io::Result<()> {
    if args.only_values {
        return found.iter().try_for_each(|xattr| out.write_all(&out.shown(&xattr.value)));
    }
    if found.is_empty() {
        return Ok(());
    }
    out.write_all(b"# file: ")?;
    out.write_all(&out.octal(&target.bytes(), b"\n\r\\"))?;
    out.write_all(b"\n")?;
    for Xattr { name, value } in found {
        out.write_all(&out.octal(name, b"=\n\r\\"))?;
        if args.dump || args.name.is_some() {
            out.write_all(b"=")?;
            let encoding = args.encoding.unwrap_or_else(|| usual(value));
            out.write_all(&encoded(value, encoding, out))?;
        }
        out.write_all(b"\n")?;
    }
    out.write_all(b"\n")
}

/// The text of a value, without the final NUL of C programs.
fn text_of(value: &[u8]) -> &[u8] {
    value.strip_suffix(b"\0").unwrap_or(value)
}

/// Returns the default encoding of a value. A value is text if at least seven eighths of its bytes are printable.
fn usual(value: &[u8]) -> Encoding {
    let text = text_of(value);
    let odd = text.iter().filter(|byte| !matches!(byte, b' '..=b'~')).count();
    if text.len() >= odd * 8 { Encoding::Text } else { Encoding::Base64 }
}

fn encoded(value: &[u8], encoding: Encoding, out: &Out) -> Vec<u8> {
    match encoding {
        Encoding::Text => {
            let slashed = text_of(value).iter().flat_map(|byte| match byte {
                b'\\' | b'"' => vec![b'\\', *byte],
                byte => vec![*byte],
            });
            [b"\"", &*out.octal(&slashed.collect::<Vec<_>>(), b"\0\n\r"), b"\""].concat()
        }
        Encoding::Hex => {
            let mut text = String::from("0x");
            for byte in value {
                let _ = write!(text, "{byte:02x}");
            }
            text.into_bytes()
        }
        Encoding::Base64 => base64(value),
    }
}

fn base64(value: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = b"0s".to_vec();
    for chunk in value.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= chunk.len() { digit } else { b'=' });
        }
    }
    text
}
