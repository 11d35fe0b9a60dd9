//! `ironmap find`: finds the files of a tree that pass all given tests.

mod test;

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use ironmap::fs::Follow;
use ironmap_image::volumes::Volumes;
use ironmap_image::walk::{Visit, walk_to};
use ironmap_image::{Failure, Report};

use self::test::Expression;
use crate::target;
use crate::terminal::stdout;

/// Finds files of trees, by name, type, size and other attributes
///
/// Each file is printed as VOLUME:/PATH. Other commands accept this form. A directory comes before its files. Symbolic links are not
/// followed. A file must pass all tests, and must fail each test after '!'.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "ironmap find VOLUME:/DIR... [TEST]...",
    after_help = "\
Tests, as in find(1); N may be +N for more, and -N for less:
  -name GLOB, -iname GLOB   the last name; -iname ignores case
  -path GLOB                the whole printed name, with the volume
  -type LETTERS             f, d, l, b, c, p, s; several are separated by commas
  -size N[cwbkMG]           the size in units of 512 bytes (b) or others, rounded up
  -mtime N                  changed N days ago
  -perm MODE                exactly these bits; -MODE all of them, /MODE any of them
  -links N, -uid N, -inum N
  -empty                    empty files and directories
  -mindepth N, -maxdepth N  levels below VOLUME:/DIR
  -print0                   a NUL ends each name

Examples:
  ironmap find disk.img:/etc -name '*.conf' -size +4k
  ironmap find disk.img -type f -perm /u+s,g+s
  ironmap find disk.img:/var/log -name '*.gz' -print0 | xargs -0 ironmap cat | zcat"
)]
pub(crate) struct Args {
    /// The trees (a volume without a path means its root), then the tests
    #[arg(
        value_name = "VOLUME:/DIR|TEST",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    words: Vec<OsString>,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let is_test = |word: &OsString| word.as_bytes().starts_with(b"-") || *word == "!";
    let end = args.words.iter().position(is_test).unwrap_or(args.words.len());
    let (trees, tests) = args.words.split_at(end);
    let trees: Result<Vec<_>, _> = trees.iter().map(|tree| target::parse_tree(tree)).collect();
    let trees = trees.map_err(Failure::usage)?;
    if trees.is_empty() {
        return Err(Failure::usage("VOLUME:/DIR is missing before the tests"));
    }
    let wanted = Expression::parse(tests).map_err(Failure::usage)?;
    let mut out = stdout();
    let end: &[u8] = if wanted.print0 { b"\0" } else { b"\n" };
    let mut volumes = Volumes::to_read(report.context());
    report.each(&trees, |target, report| {
        let root = volumes.file(target, Follow::NotLast)?;
        let volume = [target.volume.to_string().as_bytes(), b":"].concat();
        walk_to(root, wanted.most, report, |found, visit, _| {
            let path = found.name.path();
            if visit != Visit::First || depth(&target.path, path) < wanted.least {
                return Ok(());
            }
            let shown = [&volume, path].concat();
            if wanted.matches(found, &shown)? {
                out.write_all(&out.shown(&shown))?;
                out.write_all(end)?;
            }
            Ok(())
        })
        .map(drop)
    })?;
    Ok(out.flush()?)
}

/// The number of levels between a path and its root.
fn depth(root: &[u8], path: &[u8]) -> usize {
    let below = path.get(root.len()..).unwrap_or_default();
    below.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count()
}
