//! Copies a tree of a volume into the same volume or another volume.

use std::collections::HashSet;
use std::rc::Rc;

use ironmap::Queue;
use ironmap::fs::FileType;
use ironmap::iomap::{Iomap, IomapType};
use ironmap::units::FilePos;

use super::directory_of;
use super::step::{Entry, PIECE, Step};
use super::stream::Pieces;
use super::writer::{Writer, check_name};
use crate::copy::{CopyOptions, Keep};
use crate::failure::Failure;
use crate::needs::Needs;
use crate::report::Report;
use crate::target::Target;
use crate::transfer;
use crate::volumes::{Destination, Found, Name, Volumes};
use crate::walk::{Visit, walk_until};

/// Copies the file or tree at a path of a volume.
pub(super) fn copy_volume(
    options: &CopyOptions,
    volumes: &mut Volumes,
    target: &Target,
    to: &Destination,
    writer: &mut Writer,
    report: &mut Report,
) -> Result<(), Failure> {
    let found = volumes.file(target, options.follow)?;
    let kind = found.inode.file_type();
    options.check_kind(target, kind)?;
    options.check_content(target, kind)?;
    let to = to.name_for(&found.name.name);
    check_name(&to, kind, writer)?;
    if kind == FileType::Directory && is_below(&to, &found)? {
        return Err(found
            .name
            .refused(format_args!("a directory cannot be copied into itself, {to}")));
    }
    copy_tree(found, to, writer, report)
}

/// Copies a file of a volume and, if it is a directory, everything below it.
pub(super) fn copy_tree(
    found: Found,
    to: Name,
    writer: &mut Writer,
    report: &mut Report,
) -> Result<(), Failure> {
    let source = Rc::clone(&found.name.source);
    writer.start(to, Some(&source));
    let queue = source.queue()?;
    let ends = writer.how().ends;
    let mut reader = Reader { keep: writer.how().keep, queue, pieces: writer.pieces() };
    let ends = |failure: &Failure| failure.is_unread() || ends.with(failure);
    walk_until(found, usize::MAX, &ends, report, |found, visit, report| match visit {
        Visit::First => reader.begin(found, writer, report),
        Visit::Last { .. } => writer.take(Step::End(Some(0)), report),
    })
    .map(drop)
}

/// Adds the inodes and the space that a directory of a volume and everything below it need to `needs`.
///
/// # Errors
/// Fails if a part of the volume cannot be read.
pub(crate) fn needs_of(
    target: &Target,
    needs: &mut Needs,
    report: &mut Report,
) -> Result<(), Failure> {
    let root = directory_of(target, report.context())?;
    let (top, mut seen) = (root.number(), HashSet::new());
    walk_until(root, usize::MAX, &|_| true, report, |found, visit, _| {
        if visit != Visit::First {
            return Ok(());
        }
        if found.number() != top {
            needs.name(&found.name.name);
        }
        let (kind, stat) = (found.inode.file_type(), found.inode.stat());
        if stat.links > 1 && kind != FileType::Directory && !seen.insert(found.number()) {
            needs.total.add(kind, 0);
            return Ok(());
        }
        needs.total.add(kind, stat.size);
        let xattrs = found.inode.xattrs().map_err(|error| found.failed(&error))?;
        let lengths = xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len());
        needs.file(kind, stat.size, lengths);
        if kind == FileType::Regular {
            for range in ranges(found)? {
                let Iomap { pos, len, .. } = range.map_err(|error| found.failed(&error))?;
                needs.range(pos.0, len);
            }
        }
        Ok(())
    })
    .map(drop)
}

/// Returns the written ranges of a regular file.
fn ranges(found: &Found) -> Result<impl Iterator<Item = ironmap::Result<Iomap>>, Failure> {
    let inode = found.name.source.inode(found.number(), found.name.path())?;
    let file = found.name.source.file(inode, found.name.path())?;
    let ranges: Vec<_> = file.mappings().filter(is_written).collect();
    Ok(ranges.into_iter())
}

/// Whether a range contains written data. A copy has holes in place of all other ranges. An error counts as a written range, so that the
/// caller gets the error.
fn is_written(mapping: &ironmap::Result<Iomap>) -> bool {
    !mapping
        .as_ref()
        .is_ok_and(|mapping| matches!(mapping.kind, IomapType::Hole | IomapType::Unwritten))
}

/// Whether a name is in a directory or below it.
fn is_below(name: &Name, dir: &Found) -> Result<bool, Failure> {
    if !name.is_beside(&dir.name) {
        return Ok(false);
    }
    let mut seen = HashSet::new();
    let mut above = name.dir;
    // The loop ends even on a damaged volume, because `seen` detects a directory that was already visited.
    while above != dir.number() {
        if above == name.fs().root() || !seen.insert(above) {
            return Ok(false);
        }
        let parent = name.fs().lookup(above, b"..");
        above = parent.map_err(|error| name.failed(&error))?.number();
    }
    Ok(true)
}

struct Reader {
    keep: Keep,
    queue: Queue,
    pieces: Pieces,
}

impl Reader {
    fn begin(
        &mut self,
        found: &Found,
        writer: &mut Writer,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let (inode, name) = (&found.inode, &found.name);
        let volume = name.source.number();
        let (kind, identity) = (inode.file_type(), (volume, found.number().0));
        let directory = kind == FileType::Directory;
        let several = self.keep.links && inode.stat().links > 1 && !directory;
        if several && !writer.seen.insert(identity) {
            return writer.take(Step::Again(name.name.clone(), identity), report);
        }
        let mut xattrs = Vec::new();
        if self.keep.any_xattr() {
            xattrs = inode.xattrs().map_err(|error| found.failed(&error))?;
            xattrs.retain(|xattr| self.keep.xattr(&xattr.name));
        }
        let entry = Entry {
            name: name.name.clone(),
            path: name.to_string(),
            identity,
            stat: inode.stat().clone(),
            target: name.source.link_target(inode, name.path())?,
            leads_to: if writer.copies_within() { found.link_leads_to() } else { None },
            wanted: None,
            xattrs,
        };
        let begun = writer.take(Step::Begin(Box::new(entry)), report);
        if directory {
            // After a failure, the walk still visits the entries of the directory, and the writer skips them.
            return match begun {
                Err(failure) if !writer.how().ends.with(&failure) => {
                    report.error(&failure);
                    Ok(())
                }
                begun => begun,
            };
        }
        let mut size = Some(inode.size());
        let mut result = begun;
        if kind == FileType::Regular && result.is_ok() {
            result = self.content(found, writer, report);
            size = size.filter(|_| result.is_ok());
        }
        result.and(writer.take(Step::End(size), report))
    }

    /// Sends the written ranges.
    fn content(
        &mut self,
        found: &Found,
        writer: &mut Writer,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let failed = |error: ironmap::Error| found.failed(&error);
        let inode = found.name.source.inode(found.number(), found.name.path())?;
        let file = found.name.source.file(inode, found.name.path())?;
        for mapping in file.mappings().filter(is_written) {
            let mapping = mapping.map_err(failed)?;
            let mut pos = mapping.pos;
            writer.take(Step::Range(pos, mapping.len), report)?;
            while pos < mapping.end() {
                report.stop().check()?;
                let len = (mapping.end().0 - pos.0).min(PIECE) as usize;
                let mut bytes = self.pieces.take(len).map_err(failed)?;
                let count = transfer::read(&file, &mut self.queue, &mut bytes, pos)
                    .map_err(|error| found.name.source.read_failed(found.name.path(), &error))?;
                if count == 0 {
                    break;
                }
                writer.take(Step::Data(pos, bytes.split_to(count)), report)?;
                pos = FilePos(pos.0 + count as u64);
            }
        }
        Ok(())
    }
}
