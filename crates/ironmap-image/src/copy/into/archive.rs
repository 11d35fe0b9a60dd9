//! A tar archive, read by a thread of its own while the volume is written.

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

/// What an archive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Tree,
    /// Its names of OCI's image layers hide what layers before it have.
    Layer,
    /// The same, if it is not an archive of whole images: that is refused when its members show it.
    MaybeLayer,
}

/// Copies what an archive holds, and adds to `needs` what was read of it: all, also where there was no room for it.
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
            "{}: the access lists of {access_lists} files are in words, and were not kept",
            archive.name()
        ));
    }
    (copied, needs)
}

/// Adds what the members of an archive need. It is read to its end.
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

    /// What cannot be read any more needs nothing.
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

    /// `shows` is the member's name where it may show that the archive is no layer.
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
                    let what = "is an archive of images, with other files or read from a stream";
                    let name = self.archive.name();
                    let failure = Failure::new(format!("{name}: {what}"));
                    return Ok(Err(failure.because("give it as a file that is not compressed")));
                }
                Ok(bytes) => self.feed.send(Step::Data(FilePos(pos), bytes))?,
                Err(failure) => return Ok(Err(failure)),
            }
            pos += piece;
        }
        Ok(Ok(()))
    }
}

/// What a member does of whose names one begins with `.wh.` (OCI image specification, "Image Layer Filesystem Changeset"): the first such one
/// decides, since nothing can be in it. `None` for any other member, and for those of AUFS's own, which are kept until the layer ends.
fn whiteout(path: &[u8]) -> Option<Step> {
    let mut names = path.split(|byte| *byte == b'/');
    let name = names.find(|name| name.starts_with(WHITEOUT))?;
    let begin = name.as_ptr().addr() - path.as_ptr().addr();
    let (dir, hidden) = (&path[..begin], &name[WHITEOUT.len()..]);
    let parent = dir.strip_suffix(b"/").unwrap_or(dir).to_vec();
    match hidden {
        b".wh..opq" => Some(Step::Empty(parent)),
        b"" | b"." | b".." => {
            let what = "hides no file: its name ends behind .wh., or with a directory's own name";
            let path = String::from_utf8_lossy(path);
            Some(Step::Failed(Failure::new(format!("{path}: {what}"))))
        }
        _ if hidden.starts_with(WHITEOUT) => None,
        _ => Some(Step::Hide([dir, hidden].concat())),
    }
}
