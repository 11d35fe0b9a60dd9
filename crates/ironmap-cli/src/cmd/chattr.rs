//! `ironmap chattr`: changes inode flags.

use ironmap::fs::{FileType, Follow, InodeFlags};
use ironmap_image::volumes::{Found, Volumes};
use ironmap_image::walk::{Visit, walk};
use ironmap_image::{Failure, Report};

use crate::target::{self, Target};

/// Sets and clears the flags of files: i for immutable, a for append-only, and others
///
/// The letters are those of lsattr: a, A, c, d, D, i, P, s, S, t, T, u. With -R, symbolic links are not changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap chattr +i disk.img:/etc/resolv.conf
  ironmap chattr -R -- -ia disk.img:/var/log
  ironmap chattr =d disk.img:/cache")]
pub(crate) struct Args {
    /// Also change all files below directories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// +LETTERS, -LETTERS or =LETTERS
    #[arg(value_name = "MODE", value_parser = Change::parse, allow_hyphen_values = true)]
    mode: Change,
    /// The files
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target(), required = true)]
    targets: Vec<Target>,
}

const LETTERS: [(char, InodeFlags); 12] = [
    ('a', InodeFlags::APPEND),
    ('A', InodeFlags::NO_ATIME),
    ('c', InodeFlags::COMPRESS),
    ('d', InodeFlags::NO_DUMP),
    ('D', InodeFlags::DIR_SYNC),
    ('i', InodeFlags::IMMUTABLE),
    ('P', InodeFlags::PROJECT_INHERIT),
    ('s', InodeFlags::SECURE_DELETE),
    ('S', InodeFlags::SYNC),
    ('t', InodeFlags::NO_TAIL),
    ('T', InodeFlags::TOP_DIR),
    ('u', InodeFlags::UNDELETE),
];

/// The requested change of the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    set: InodeFlags,
    clear: InodeFlags,
}

impl Change {
    fn parse(text: &str) -> Result<Self, String> {
        let mut letters = text.chars();
        let operator = letters.next();
        let mut flags = InodeFlags::empty();
        for letter in letters {
            let known = LETTERS.iter().find(|(known, _)| *known == letter);
            flags |= known.ok_or_else(|| format!("unknown flag '{letter}' in '{text}'"))?.1;
        }
        let all = LETTERS.iter().fold(InodeFlags::empty(), |all, (_, flag)| all | *flag);
        match operator {
            Some('+') => Ok(Self { set: flags, clear: InodeFlags::empty() }),
            Some('-') => Ok(Self { set: InodeFlags::empty(), clear: flags }),
            Some('=') => Ok(Self { set: flags, clear: all }),
            _ => Err(format!("'{text}' does not begin with +, - or =")),
        }
    }
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    Volumes::change_each(&args.targets, report, |volumes, target, report| {
        let found = volumes.find(target, Follow::All)?;
        if !args.recursive {
            return change(args, &found);
        }
        walk(found, report, |found, visit, _| {
            let link = found.inode.file_type() == FileType::Symlink;
            if visit != Visit::First || link { Ok(()) } else { change(args, found) }
        })
        .map(drop)
    })
}

fn change(args: &Args, found: &Found) -> Result<(), Failure> {
    let flags = (found.inode.flags() - args.mode.clear) | args.mode.set;
    found
        .fs()
        .writable()
        .and_then(|writer| writer.set_flags(found.number(), flags))
        .map_err(|error| found.failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_set_cleared_or_all_there_are() {
        let ia = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        let none = InodeFlags::empty();
        assert_eq!(Change::parse("+ia"), Ok(Change { set: ia, clear: none }));
        assert_eq!(Change::parse("-ai"), Ok(Change { set: none, clear: ia }));
        let exactly = Change::parse("=d").unwrap();
        assert!(exactly.clear.contains(ia) && exactly.set == InodeFlags::NO_DUMP);
        for wrong in ["", "i", "+e", "+i-a"] {
            assert!(Change::parse(wrong).is_err(), "{wrong}");
        }
    }
}
