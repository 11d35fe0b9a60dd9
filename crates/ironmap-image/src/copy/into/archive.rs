//! Copies a tar archive into a volume. A separate thread reads the archive during the writes.

use ironmap::units::FilePos;

use super::feed::{self, Feed};
use super::places::WHITEOUT;
use super::step::{Entry, PIECE, Step, Stopped};
use super::stream::Pieces;
use super::writer::Writer;
use crate::archive::{Archive, Member};
use crate::failure::Failure;
use crate::needs::Needs;
use crate::oci::is_of_images;
use crate::report::Report;
use crate::stop::Stop;

/// The role of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Tree,
    /// An image layer. A name that begins with `.wh.` hides files of earlier layers (OCI image specification).
    Layer,
    /// An archive that should be an image layer. It is refused if its members show that it contains complete images.
    MaybeLayer,
}

/// Copies the members of an archive into the volume, and adds the inodes and the space that each member needs to `needs`. If the volume is
/// full, the remaining members are read only to count their needs.
pub(super) fn copy(
    archive: Archive,
    role: Role,
    needs: Needs,
    writer: &mut Writer,
    report: &mut Report,
) -> (Result<(), Failure>, Needs) {
    let pieces = writer.pieces();
    let (copied, read) = feed::copy(writer, report, |feed| {
        let mut reader = Reader { archive, role, feed, pieces, needs, access_lists: 0 };
        if let Err(Stopped) = reader.members().and_then(|()| reader.feed.flush())
            && reader.feed.lacks_room()
        {
            reader.count_rest();
        }
        (reader.archive, reader.needs, reader.access_lists)
    });
    let (archive, needs, access_lists) = read;
    if access_lists > 0 {
        report.warning(format_args!(
            "{}: the access control lists of {access_lists} files are in text form and were not copied",
            archive.name()
        ));
    }
    (copied, needs)
}

/// Reads an archive to its end, and adds the inodes and the space that its members need to `needs`.
pub(crate) fn needs_of(
    mut archive: Archive,
    needs: &mut Needs,
    stop: &Stop,
) -> Result<(), Failure> {
    while let Some(member) = archive.next()? {
        stop.check()?;
        count(needs, &member);
    }
    Ok(())
}

fn count(needs: &mut Needs, member: &Member) {
    let Member { stat, xattrs, .. } = member;
    let name = member.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    needs.name(name);
    let size = if member.link.is_some() { 0 } else { stat.size };
    needs.total.add(stat.file_type, size);
    if member.link.is_some() {
        return;
    }
    let attributes = xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len());
    needs.file(stat.file_type, stat.size, attributes);
    member.data.iter().for_each(|(offset, len)| needs.range(*offset, *len));
}

struct Reader {
    archive: Archive,
    role: Role,
    feed: Feed,
    pieces: Pieces,
    needs: Needs,
    access_lists: u64,
}

impl Reader {
    fn members(&mut self) -> Result<(), Stopped> {
        loop {
            match self.archive.next() {
                Ok(Some(member)) => self.member(member)?,
                Ok(None) => return Ok(()),
                Err(failure) => return self.feed.send(Step::Failed(failure)),
            }
        }
    }

    /// Adds the inodes and the space that the remaining members need, up to the first member that cannot be read.
    fn count_rest(&mut self) {
        while let Ok(Some(member)) = self.archive.next() {
            count(&mut self.needs, &member);
        }
    }

    fn member(&mut self, member: Member) -> Result<(), Stopped> {
        if self.role != Role::Tree
            && let Some(step) = whiteout(&member.path)
        {
            return self.feed.send(step);
        }
        count(&mut self.needs, &member);
        let Member { path, stat, link, target, xattrs, access_list, data } = member;
        self.access_lists += u64::from(access_list);
        let text = String::from_utf8_lossy(&path).into_owned();
        let looks = self.role == Role::MaybeLayer && !path.contains(&b'/') && link.is_none();
        let shows = looks.then(|| path.clone());
        self.feed.send(Step::At(path))?;
        if let Some(link) = link {
            return self.feed.send(Step::Link(link));
        }
        let size = stat.size;
        let entry = Entry {
            name: Vec::new(),
            path: text,
            identity: (0, 0),
            stat,
            target,
            xattrs,
            leads_to: None,
            wanted: None,
        };
        self.feed.send(Step::Begin(Box::new(entry)))?;
        for (pos, len) in data {
            self.feed.send(Step::Range(FilePos(pos), len))?;
            if let Err(failure) = self.range(pos, len, shows.as_deref())? {
                self.feed.send(Step::End(None))?;
                return self.feed.send(Step::Failed(failure));
            }
        }
        self.feed.send(Step::End(Some(size)))
    }

    /// Sends a range of a member's content. If this content may show that the archive is not a layer, `shows` is the name of the member.
    fn range(
        &mut self,
        pos: u64,
        len: u64,
        shows: Option<&[u8]>,
    ) -> Result<Result<(), Failure>, Stopped> {
        let (mut pos, end) = (pos, pos + len);
        while pos < end {
            let piece = (end - pos).min(PIECE);
            let read = match self.pieces.take(piece as usize) {
                Ok(mut bytes) => self.archive.read(&mut bytes).map(|()| bytes),
                Err(error) => Err(Failure::at(self.archive.name(), &error)),
            };
            match read {
                Ok(bytes) if shows.is_some_and(|name| is_of_images(name, &bytes)) => {
                    let what = "the file is an archive of images, which cannot be read as a layer";
                    let name = self.archive.name();
                    let failure = Failure::new(format!("{name}: {what}"));
                    return Ok(Err(failure.because("use an uncompressed file of the archive")));
                }
                Ok(bytes) => self.feed.send(Step::Data(FilePos(pos), bytes))?,
                Err(failure) => return Ok(Err(failure)),
            }
            pos += piece;
        }
        Ok(Ok(()))
    }
}

/// Returns the step for a whiteout: a member with a path component that begins with `.wh.` (OCI image specification, "Image Layer
/// Filesystem Changeset"). The first such component determines the step. Returns `None` for any other member. Also returns `None` if this
/// component begins with `.wh..wh.`, because AUFS uses such names internally. The files with such names are removed when the layer ends.
fn whiteout(path: &[u8]) -> Option<Step> {
    let mut names = path.split(|byte| *byte == b'/');
    let name = names.find(|name| name.starts_with(WHITEOUT))?;
    let begin = name.as_ptr().addr() - path.as_ptr().addr();
    let (dir, hidden) = (&path[..begin], &name[WHITEOUT.len()..]);
    let parent = dir.strip_suffix(b"/").unwrap_or(dir).to_vec();
    match hidden {
        b".wh..opq" => Some(Step::Empty(parent)),
        b"" | b"." | b".." => {
            let what = "the whiteout names no file: a name must follow the prefix '.wh.'";
            let path = String::from_utf8_lossy(path);
            Some(Step::Failed(Failure::new(format!("{path}: {what}"))))
        }
        _ if hidden.starts_with(WHITEOUT) => None,
        _ => Some(Step::Hide([dir, hidden].concat())),
    }
}
