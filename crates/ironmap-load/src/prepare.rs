//! Creates the files of a bench that writes, before the measurement. The kernel creates the files of a mounted target, and ironmap creates
//! all others.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use ironmap::bio::Buffer;
use ironmap::fs::{Capabilities, Credentials, Fallocate, Follow, NewFile};
use ironmap::units::FilePos;
use ironmap::{Engine, Error, FileOptions, QueueOptions, Result, VolumeOptions};
use rustix::fs::FallocateFlags;

use crate::errors::{go_on, io};
use crate::plan::{Content, Plan};
use crate::target::{TargetSpec, Variant};

/// The word with which the files are filled. zram stores no data for a page of one repeated word, so a read or write of such a page costs
/// zram only a memset.
pub const FILL: u32 = 0xdead_beef;
/// The default total size of all files in bytes, without the option `--size`.
const SIZE: u64 = 512 << 20;
/// The length of one write in bytes.
const PIECE: usize = 1 << 20;

/// The files of each target of a bench that writes.
#[derive(Clone, Copy)]
pub struct ToWrite {
    /// The number of files.
    pub files: usize,
    /// The total size of all files in bytes.
    pub size: Option<u64>,
    /// The state of the files before the measurement.
    pub content: Content,
}

impl ToWrite {
    fn of(plan: &Plan, content: Content) -> Self {
        Self { files: plan.files, size: plan.size, content }
    }

    /// The size of each file in bytes.
    fn size(&self) -> u64 {
        self.size.unwrap_or(SIZE) / self.files as u64
    }

    /// Creates the files through the kernel.
    pub fn make(&self, path: &Path) -> Result<()> {
        for path in paths(path, self.files) {
            let made = make_by_kernel(&path, self.size(), self.content);
            made.map_err(|error| io(&error, path.display().to_string()))?;
        }
        Ok(())
    }
}

/// The paths of a target's files: the path itself, or several paths with numbers.
pub fn paths(path: &Path, files: usize) -> Vec<PathBuf> {
    if files == 1 {
        return vec![path.to_owned()];
    }
    let numbered = |number| {
        let mut name = OsString::from(path);
        name.push(format!(".{number}"));
        name.into()
    };
    (0..files).map(numbered).collect()
}

/// Creates the files of a plan's targets. Existing files are replaced.
pub fn files(plan: &Plan, content: Content) -> Result<()> {
    let wanted = ToWrite::of(plan, content);
    let mut made: Vec<TargetSpec> = Vec::new();
    for target in &plan.targets {
        // The variants of a target share their files, so the files are made only once.
        let same = target.with(Variant::USUAL).unwrap_or_else(|| target.clone());
        if made.contains(&same) {
            continue;
        }
        match target {
            TargetSpec::Kernel { path } => {
                wanted.make(path)?;
            }
            TargetSpec::Vol { volume, path, .. } => {
                let paths = paths(Path::new(path), plan.files);
                make_in_volume(volume, &paths, wanted.size(), content)?;
            }
            _ => {}
        }
        made.push(same);
    }
    Ok(())
}

fn make_by_kernel(path: &Path, size: u64, content: Content) -> std::io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size)?;
    if content == Content::Written {
        let piece = FILL.to_le_bytes().repeat(PIECE / 4);
        let mut left = size as usize;
        while left > 0 {
            if go_on().is_err() {
                return Err(std::io::Error::from_raw_os_error(ironmap::Errno::EINTR.0));
            }
            let count = left.min(PIECE);
            file.write_all(&piece[..count])?;
            left -= count;
        }
    }
    file.sync_all()
}

fn make_in_volume(name: &str, paths: &[PathBuf], size: u64, content: Content) -> Result<()> {
    const WHO: Credentials = Credentials::new(0, 0, 0);
    let options = VolumeOptions::new().engine(Engine::Psync).write(true);
    let volume = options.open(name)?;
    let fs = volume.fs();
    if !fs.capabilities().contains(Capabilities::METADATA) {
        // ironmap cannot create files on this file system, so the files of the target must exist already.
        return Ok(());
    }
    let mut queue = volume.queue(&QueueOptions::new().depth(1))?;
    let mut piece = Buffer::aligned(PIECE)?;
    fill(&mut piece);
    for path in paths {
        let (parent, name) = (path.parent(), path.file_name());
        let (Some(parent), Some(name)) = (parent, name) else {
            return Err(Error::invalid(format!(
                "{}: the path does not end with a file name",
                path.display()
            )));
        };
        let dir = fs.resolve(parent.as_os_str().as_encoded_bytes(), Follow::All)?.number();
        let name = name.as_encoded_bytes();
        if fs.lookup(dir, name).is_ok() {
            fs.writable()?.unlink(dir, name)?;
        }
        let number = fs.writable()?.create(dir, name, NewFile::Regular, 0o644, &WHO)?;
        fs.writable()?.fallocate(
            number,
            Fallocate::Allocate { keep_size: false },
            FilePos(0),
            size,
        )?;
        if content == Content::Written {
            let file = volume.open_inode(fs.inode(number)?, FileOptions::new().write(true))?;
            let mut at = 0;
            while at < size {
                go_on()?;
                let count = (size - at).min(PIECE as u64) as usize;
                at += file.write_at(&mut queue, &piece[..count], FilePos(at))? as u64;
            }
            file.sync(&mut queue)?;
        }
    }
    drop(queue);
    volume.close()
}

/// Fills memory with the fill word.
pub fn fill(buffer: &mut [u8]) {
    buffer.chunks_mut(4).for_each(|word| word.copy_from_slice(&FILL.to_le_bytes()[..word.len()]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_files_are_numbered() {
        assert_eq!(paths(Path::new("/f"), 1), [PathBuf::from("/f")]);
        assert_eq!(paths(Path::new("/f"), 2), [PathBuf::from("/f.0"), PathBuf::from("/f.1")]);
    }
}
