//! The size of an image that is made for its content.
//!
//! What the sources need is counted first, and sizes are tried until one has that room: of a new image file that is a matter of its metadata, so no
//! content is moved. A stream is kept in an unnamed file meanwhile, as it came.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek};
use std::path::Path;

use ironmap::Location;
use ironmap::fs::ext4::{MkfsOptions, Superblock};
use ironmap::location::{Part, Site};
use rustix::fs::{Mode, OFlags};

use super::Args;
use super::fill::{Sources, needs_of_all};
use super::room::set_len;
use crate::failure::Failure;
use crate::needs::Needs;

const MIB: u64 = 1 << 20;
/// So often a size is tried. Each try comes nearer by the metadata that the last one had too many or too few.
const TRIES: u32 = 16;
const LARGEST: u64 = 1 << 50;

/// A new image, and what is to go into it.
pub(super) struct Fit<'a> {
    args: &'a Args,
    path: &'a Path,
    needs: Needs,
    pub(super) size: u64,
}

impl<'a> Fit<'a> {
    /// Where the sources say the size, counts what they need; else `None`.
    pub(super) fn new(args: &'a Args, sources: &mut Sources) -> Result<Option<Self>, Failure> {
        let path = match &args.volume {
            Location::Plain(Site { path, part: Part::Whole }) if !path.exists() => path,
            _ if args.shrink => {
                let what = "--shrink makes a new image file, and this is none";
                return Err(Failure::usage(format!("{}: {what}", args.volume)));
            }
            _ => return Ok(None),
        };
        if args.size.is_some() || args.sources.is_empty() {
            return Ok(None);
        }
        sources.keep_stream(|| spool(path))?;
        let unit = args.cluster_size.or(args.block_size).unwrap_or(4096).clamp(1024, 1 << 30);
        let needs = needs_of_all(sources, unit)?;
        let size = needs.bytes.saturating_add(8 * MIB);
        Ok(Some(Self { args, path, needs, size }))
    }

    /// What is made of all inodes and blocks that were not asked for.
    pub(super) fn options(&self, options: &MkfsOptions) -> MkfsOptions {
        let small = u32::try_from(self.args.block_size.unwrap_or(4096)).unwrap_or(u32::MAX);
        let mut options = MkfsOptions { block_size: Some(small), zeroed: true, ..options.clone() };
        if self.args.shrink && options.inodes.is_none() && options.inode_ratio.is_none() {
            // The first ones are the file system's own, and each group has a multiple of eight.
            let block = u64::from(small.max(1024));
            let groups = self.size / (8 * block * block) + 1;
            options.inodes = Some(self.needs.inodes + 32 + 16 * groups);
        }
        options
    }

    /// Makes a volume with room for the content: `make` makes one of the size that the file has.
    pub(super) fn make(
        &mut self,
        make: impl Fn(u64) -> Result<Superblock, Failure>,
    ) -> Result<Superblock, Failure> {
        let mut least = 0;
        for _ in 0..TRIES {
            if self.size > LARGEST {
                let needs = self.needs.bytes.div_ceil(MIB);
                return Err(Failure::new(format!(
                    "the sources need {needs}M, more than a volume has"
                )));
            }
            self.size = self.size.next_multiple_of(64 << 10);
            self.empty_image()?;
            let made = make(self.size)?;
            let (room, wanted) = (room(&made), self.wanted());
            let few = self.needs.inodes + 16 > u64::from(made.inodes_count);
            if room < wanted {
                least = self.size;
                self.size = self.size.saturating_add(wanted - room);
            } else if few {
                least = self.size;
                self.size = self.size.saturating_mul(2);
            } else if !self.args.shrink || room - wanted < 128 << 10 {
                return Ok(made);
            } else {
                let smaller = self.size - (room - wanted) / 65536 * 65536;
                if smaller <= least || smaller >= self.size {
                    return Ok(made);
                }
                self.size = smaller;
            }
        }
        self.empty_image()?;
        make(self.size)
    }

    /// The content did not fit after all: what maps it took more than was thought.
    pub(super) fn grow(&mut self) {
        let more = (self.needs.bytes / 64).max(256 << 10);
        self.needs.bytes = self.needs.bytes.saturating_add(more);
        self.size = self.size.saturating_add(more);
    }

    fn wanted(&self) -> u64 {
        let bytes = self.needs.bytes;
        let spare = if self.args.shrink { bytes / 256 } else { bytes / 10 + 16 * MIB };
        bytes.saturating_add(spare)
    }

    /// A sparse file without any content.
    fn empty_image(&self) -> Result<(), Failure> {
        let failed = |error| Failure::host(self.path.display(), error);
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(self.path)
            .map_err(failed)?;
        set_len(self.path, self.size).map_err(failed)
    }
}

/// What files may have of a new volume: some blocks are kept for the nodes of maps, a fiftieth and 4096 clusters at most, as the kernel does.
fn room(made: &Superblock) -> u64 {
    let kept = (made.blocks_count / 50).min(4096 * u64::from(made.cluster_blocks));
    made.free_blocks.saturating_sub(kept) * made.block_size.bytes() as u64
}

/// Keeps standard input in an unnamed file beside the image.
fn spool(image: &Path) -> Result<File, Failure> {
    let dir = image.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR);
    let mut file = File::from(file.map_err(|errno| Failure::host(dir.display(), errno))?);
    io::copy(&mut io::stdin().lock(), &mut file)
        .and_then(|_| file.rewind())
        .map_err(|error| Failure::host("standard input, kept beside the image", error))?;
    Ok(file)
}
