//! Copies a tree of a volume into the same volume or another one.

use std::collections::HashSet;
use std::rc::Rc;

use ironmap::Queue;
use ironmap::fs::FileType;
use ironmap::iomap::IomapType;
use ironmap::units::FilePos;

use super::step::{Entry, PIECE, Step};
use super::stream::Pieces;
use super::writer::{Writer, check_name};
use crate::copy::{CopyOptions, Keep};
use crate::failure::Failure;
use crate::report::Report;
use crate::target::Target;
use crate::transfer;
use crate::volumes::{Destination, Found, Name, Volumes};
use crate::walk::{Visit, walk};

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
    let source = Rc::clone(&found.name.source);
    writer.start(to, Some(&source));
    let queue = source.queue()?;
    let mut reader = Reader { keep: writer.how().keep, queue, pieces: writer.pieces() };
    walk(found, report, |found, visit, report| match visit {
        Visit::First => reader.begin(found, writer, report),
        Visit::Last { .. } => writer.take(Step::End(Some(0)), report),
    })
    .map(drop)
}

/// Whether a name is in a directory, or below it.
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
        // The address of the volume in memory identifies the volume.
        let volume = Rc::as_ptr(&name.source).addr() as u64;
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
            // After a failure the walk still visits the entries of the directory, and the writer skips them.
            if let Err(failure) = begun {
                report.error(&failure);
            }
            return Ok(());
        }
        let mut size = Some(inode.size());
        let mut result = begun;
        if kind == FileType::Regular && result.is_ok() {
            result = self.content(found, writer, report);
            size = size.filter(|_| result.is_ok());
        }
        result.and(writer.take(Step::End(size), report))
    }

    /// Sends the written ranges. Holes and unwritten extents become holes.
    fn content(
        &mut self,
        found: &Found,
        writer: &mut Writer,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let failed = |error: ironmap::Error| found.failed(&error);
        let inode = found.name.source.inode(found.number(), found.name.path())?;
        let file = found.name.source.file(inode, found.name.path())?;
        for mapping in file.mappings() {
            let mapping = mapping.map_err(failed)?;
            if matches!(mapping.kind, IomapType::Hole | IomapType::Unwritten) {
                continue;
            }
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
