//! `ironmap diff`: compares two trees.

mod side;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use ironmap::fs::{FileType, Follow, Stat};
use ironmap_image::source::join;
use ironmap_image::volumes::Volumes;
use ironmap_image::{Failure, Report, quote};

use self::side::{Reader, Side};
use crate::failure::reported;
use crate::glob::Glob;
use crate::show::type_name;
use crate::target::{self, Subject};
use crate::terminal::{Out, one_line, stdout};

/// Compares two trees of volumes or of the host
///
/// Compares names, types, modes, owners, device numbers, content, targets of links and extended attributes, but not times. Each
/// difference is a line. The exit code is 0 if the trees are equal, and 1 otherwise.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap diff disk.img:/etc /etc
  ironmap diff -x lost+found before.img:/ after.img:/
  ironmap diff disk.img:/srv disk.img:/srv.bak")]
pub(crate) struct Args {
    /// Skip files whose last name matches; can be repeated
    #[arg(short = 'x', long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// One tree
    #[arg(value_name = "VOLUME:/PATH|PATH", value_parser = target::anywhere())]
    a: Subject,
    /// The other tree
    #[arg(value_name = "VOLUME:/PATH|PATH", value_parser = target::anywhere())]
    b: Subject,
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let mut volumes = Volumes::to_read(report.context());
    let mut root = |subject: &Subject| match subject {
        Subject::Volume(target) => volumes.file(target, Follow::All).map(Side::Volume),
        Subject::Host(path) => Ok(Side::Host(path.clone(), Follow::All)),
    };
    let (a, b) = (root(&args.a)?, root(&args.b)?);
    let excluded = args.exclude.iter().map(|glob| Glob::new(glob.as_bytes(), false)).collect();
    let mut diff = Diff {
        excluded,
        out: stdout(),
        same: true,
        readers: [Reader::new()?, Reader::new()?],
        seen: [BTreeSet::new(), BTreeSet::new()],
    };
    let compared = diff.trees(a, b, report).and_then(|()| Ok(diff.out.flush()?));
    // The exit code must be correct even if the output is a closed pipe.
    if !diff.same {
        report.error(&reported(1));
    }
    compared
}

struct Diff {
    excluded: Vec<Glob>,
    out: Out,
    /// Whether no difference was found so far.
    same: bool,
    readers: [Reader; 2],
    /// The visited directories of volumes. In a damaged volume, a directory may be below itself.
    seen: [BTreeSet<u64>; 2],
}

impl Diff {
    /// Compares two files. If both are directories, all files below them are compared too.
    fn trees(&mut self, a: Side, b: Side, report: &mut Report) -> Result<(), Failure> {
        let mut pending = vec![(a, b, b"/".to_vec())];
        while let Some((a, b, path)) = pending.pop() {
            match self.pair(&a, &b, &path) {
                Ok(pairs) => pending.extend(pairs.into_iter().rev()),
                Err(failure) if failure.is_unread() => return Err(failure),
                Err(failure) => report.error(&failure),
            }
        }
        Ok(())
    }

    /// Compares two files. If both are directories, returns the names of the entries to compare.
    fn pair(
        &mut self,
        a: &Side,
        b: &Side,
        path: &[u8],
    ) -> Result<Vec<(Side, Side, Vec<u8>)>, Failure> {
        let (ours, theirs) = (a.stat()?, b.stat()?);
        if ours.file_type != theirs.file_type {
            self.tell(path, "type", type_name(&ours), type_name(&theirs))?;
            return Ok(Vec::new());
        }
        let mode = |stat: &Stat| format!("{:o}", stat.mode & 0o7777);
        self.tell(path, "mode", &mode(&ours), &mode(&theirs))?;
        let owner = |stat: &Stat| format!("{}:{}", stat.uid, stat.gid);
        self.tell(path, "owner", &owner(&ours), &owner(&theirs))?;
        self.xattrs(a, b, path)?;
        match ours.file_type {
            FileType::Directory => return self.directory([a, b], [&ours, &theirs], path),
            FileType::Symlink => {
                let text = |link: Vec<u8>| quote::name(&link);
                let (ours, theirs) = (a.link()?, b.link()?);
                if ours != theirs {
                    self.tell(path, "target", &text(ours), &text(theirs))?;
                }
            }
            FileType::Regular if ours.size != theirs.size => {
                self.tell(path, "size", &ours.size.to_string(), &theirs.size.to_string())?;
            }
            FileType::Regular => {
                if let Some(pos) = side::first_difference(a, b, ours.size, &mut self.readers)? {
                    self.line(path, &format!("content: differs from byte {pos} on"))?;
                }
            }
            FileType::CharDevice | FileType::BlockDevice => {
                let device = |stat: &Stat| {
                    let (major, minor) = stat.device.unwrap_or_default();
                    format!("{major}, {minor}")
                };
                self.tell(path, "device", &device(&ours), &device(&theirs))?;
            }
            FileType::Fifo | FileType::Socket => {}
        }
        Ok(Vec::new())
    }

    fn directory(
        &mut self,
        [a, b]: [&Side; 2],
        stats: [&Stat; 2],
        path: &[u8],
    ) -> Result<Vec<(Side, Side, Vec<u8>)>, Failure> {
        for ((side, stat), seen) in [a, b].into_iter().zip(stats).zip(&mut self.seen) {
            if matches!(side, Side::Volume(_)) && !seen.insert(stat.inode.0) {
                let what = format!("directory inode {} has more than one name", stat.inode);
                return Err(Failure::corrupt(side, &what));
            }
        }
        let (ours, theirs) = (a.names()?, b.names()?);
        let all: BTreeSet<&Vec<u8>> = ours.keys().chain(theirs.keys()).collect();
        let mut pairs = Vec::new();
        for name in all {
            if self.excluded.iter().any(|glob| glob.matches(name)) {
                continue;
            }
            match (ours.get(name), theirs.get(name)) {
                (Some(ours), Some(theirs)) => {
                    pairs.push((a.child(name, *ours)?, b.child(name, *theirs)?, join(path, name)));
                }
                (there, _) => {
                    let side = if there.is_some() { a } else { b };
                    self.same = false;
                    write!(self.out, "Only in {}: ", one_line(&side.to_string()))?;
                    self.name(name)?;
                    writeln!(self.out)?;
                }
            }
        }
        Ok(pairs)
    }

    fn xattrs(&mut self, a: &Side, b: &Side, path: &[u8]) -> Result<(), Failure> {
        let map = |side: &Side| -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Failure> {
            Ok(side.xattrs()?.into_iter().map(|xattr| (xattr.name, xattr.value)).collect())
        };
        let (ours, theirs) = (map(a)?, map(b)?);
        let all: BTreeSet<&Vec<u8>> = ours.keys().chain(theirs.keys()).collect();
        for name in all {
            let (ours, theirs) = (ours.get(name), theirs.get(name));
            if ours != theirs {
                let shown = |value: Option<&Vec<u8>>| {
                    value.map_or("none".to_owned(), |value| format!("\"{}\"", value.escape_ascii()))
                };
                let what = quote::name(name);
                self.tell(path, &what, &shown(ours), &shown(theirs))?;
            }
        }
        Ok(())
    }

    /// Prints a line if two values differ.
    fn tell(&mut self, path: &[u8], what: &str, a: &str, b: &str) -> io::Result<()> {
        if a == b { Ok(()) } else { self.line(path, &format!("{what}: {a}, {b}")) }
    }

    fn line(&mut self, path: &[u8], what: &str) -> io::Result<()> {
        self.same = false;
        self.name(path)?;
        writeln!(self.out, ": {what}")
    }

    fn name(&mut self, name: &[u8]) -> io::Result<()> {
        self.out.write_all(&self.out.shown(name))
    }
}
