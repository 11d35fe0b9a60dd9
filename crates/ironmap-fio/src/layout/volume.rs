//! Files of a volume.

use std::sync::{Arc, Mutex, PoisonError};

use ironmap::bio::Buffer;
use ironmap::fs::{Credentials, Fallocate, FileSystem, FileType, Follow, NewFile};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Error, ErrorKind, FileOptions, QueueOptions, Result, Volume};

use super::content::{Content, Layout};

const WHO: Credentials = Credentials::new(0, 0, 0o022);

/// The size of a regular file. `None` if the file does not exist.
pub(super) fn size(volume: &Volume, path: &[u8]) -> Result<Option<u64>> {
    match volume.fs().resolve(path, Follow::All) {
        Ok(inode) if inode.file_type() == FileType::Regular => Ok(Some(inode.size())),
        Ok(_) => Err(Error::new(ErrorKind::WrongFileType, "is not a regular file")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates a file and the directories above it, or extends an existing file. With `Content::Written`, the complete file is overwritten.
/// With any other content, existing data are kept.
pub(super) fn lay_out(volume: &Volume, path: &[u8], layout: &mut Layout<'_>) -> Result<()> {
    let number = make(volume.fs(), path, layout)?;
    if layout.content == Content::Written {
        write(volume, number, layout)?;
    }
    volume.fs().sync()
}

/// Creates or extends the file without writing its content. With create_serialize=0, several jobs may create the same file at the same
/// time, with different sizes. A lock serialises the calls, so that no job shortens the file of another job.
fn make(fs: &Arc<dyn FileSystem>, path: &[u8], layout: &Layout<'_>) -> Result<InodeNo> {
    static ONE: Mutex<()> = Mutex::new(());
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (number, now) = match fs.resolve(path, Follow::All) {
        Ok(inode) => (inode.number(), inode.size()),
        Err(error) if error.kind() == ErrorKind::NotFound => (create(fs, path, layout)?, 0),
        Err(error) => return Err(error),
    };
    let (start, size) = (FilePos(0), layout.size);
    match layout.content {
        Content::Grows => {}
        _ if size == 0 => {}
        Content::Sparse if size > now => fs.writable()?.truncate(number, size)?,
        Content::Sparse => {}
        Content::Preallocated | Content::Written => {
            fs.writable()?.fallocate(
                number,
                Fallocate::Allocate { keep_size: false },
                start,
                size,
            )?;
        }
    }
    Ok(number)
}

fn create(fs: &Arc<dyn FileSystem>, path: &[u8], layout: &Layout<'_>) -> Result<InodeNo> {
    layout.may_be_made()?;
    let (above, name) = split(path);
    let mut dir = fs.root();
    for part in above.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        dir = match fs.lookup(dir, part) {
            Ok(inode) => inode.number(),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                fs.writable()?.create(dir, part, NewFile::Directory, 0o755, &WHO)?
            }
            Err(error) => return Err(error),
        };
    }
    fs.writable()?.create(dir, name, NewFile::Regular, 0o644, &WHO)
}

fn write(volume: &Volume, number: InodeNo, layout: &mut Layout<'_>) -> Result<()> {
    let file = volume.open_inode(volume.fs().inode(number)?, FileOptions::new().write(true))?;
    let mut queue = volume.queue(&QueueOptions::new().depth(1))?;
    let mut piece = Buffer::aligned(layout.piece.max(1))?;
    let mut at = 0;
    while at < layout.size {
        let count = (layout.size - at).min(piece.len() as u64) as usize;
        (layout.fill)(&mut piece[..count]);
        at += file.write_at(&mut queue, &piece[..count], FilePos(at))? as u64;
    }
    file.sync(&mut queue)
}

/// Removes a file's name.
pub(super) fn unlink(volume: &Volume, path: &[u8]) -> Result<()> {
    let fs = volume.fs();
    let (above, name) = split(path);
    fs.writable()?.unlink(fs.resolve(above, Follow::All)?.number(), name)
}

/// Splits a path into the path of the directory and the name in this directory.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..=slash], &path[slash + 1..]),
        None => (b"/", path),
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn names_without_a_directory_are_in_the_root() {
        assert_eq!(split(b"job.0.0"), (&b"/"[..], &b"job.0.0"[..]));
        assert_eq!(split(b"/f"), (&b"/"[..], &b"f"[..]));
        assert_eq!(split(b"a/b/f"), (&b"a/b/"[..], &b"f"[..]));
    }
}
