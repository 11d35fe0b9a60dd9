//! Finds a size at which a new image has enough space for its content.
//!
//! First, the inodes and the space that the sources need are counted. Then volumes of several sizes are made until one of them has enough
//! space. These volumes contain only metadata; no content is copied. During this search, an unnamed file stores the content of a stream.

use std::path::Path;

use super::{Plan, Size};
use crate::failure::Failure;
use crate::needs::Needs;
use crate::new_image::NewImage;
use crate::report::Report;
use crate::sources::Sources;
use crate::stop::Stop;
use ironmap::fs::ext4::{MkfsOptions, RoCompat, Superblock};

const MIB: u64 = 1 << 20;
/// The maximum number of sizes to try. Each try corrects the size by the missing or unused space of the previous volume.
const TRIES: u32 = 16;
/// All sizes are multiples of this length.
const STEP: u64 = 64 << 10;
const LARGEST: u64 = 1 << 50;

/// A new image, and its future content.
pub(super) struct Fit<'a> {
    plan: &'a Plan<'a>,
    stop: Stop,
    image: NewImage,
    needs: Needs,
    pub(super) size: u64,
}

impl<'a> Fit<'a> {
    /// Makes the image file, and counts the inodes and the space that the sources need, if the size depends on the sources. Otherwise,
    /// returns `None`.
    pub(super) fn new(
        plan: &'a Plan<'a>,
        sources: &mut Sources,
        report: &mut Report,
    ) -> Result<Option<Self>, Failure> {
        let mut image = match plan.file() {
            Some((path, format)) if plan.fits(sources) => NewImage::create_aside(path, format)?,
            _ => None,
        };
        if let (Some(image), Some(_)) = (&mut image, plan.compression) {
            image.compress(report.stop());
        }
        let Some(image) = image else {
            if plan.size == Size::Shrink {
                let what = "shrink is possible only for a new image file";
                return Err(Failure::usage(format!("{}: {what}", plan.volume)));
            }
            return Ok(None);
        };
        report.context().make_aside(plan.volume, image.path());
        let dir = image.path().parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.unwrap_or(Path::new("."));
        sources.keep_streams(dir)?;
        let options = plan.options;
        let blocks = options.block_size.unwrap_or(4096);
        let bigalloc = options.features.ro_compat.contains(RoCompat::BIGALLOC);
        let clusters = if bigalloc { blocks.saturating_mul(16) } else { blocks };
        let unit = u64::from(options.cluster_size.unwrap_or(clusters));
        let needs = sources.count(unit.clamp(1024, 1 << 30), report)?;
        let size = needs.bytes.saturating_add(8 * MIB);
        Ok(Some(Self { plan, stop: report.stop().clone(), image, needs, size }))
    }

    /// Keeps the image file, because the volume is complete.
    pub(super) fn keep(self) -> Result<(), Failure> {
        self.image.keep()
    }

    /// Returns the options of the user. Adds the block size if the user did not give it. For the smallest size, also adds the number of
    /// inodes.
    pub(super) fn options(&self) -> MkfsOptions {
        let small = self.plan.options.block_size.unwrap_or(4096);
        let mut options = self.plan.options.clone().block_size(small).zeroed(true);
        if self.plan.size == Size::Shrink
            && options.inodes.is_none()
            && options.inode_ratio.is_none()
        {
            // The volume needs a few more inodes than the files: the file system itself uses the first inodes, and the number of inodes of
            // a group is rounded to a multiple of eight.
            let block = u64::from(small.clamp(1024, 65536));
            let groups = self.size / (8 * block * block) + 1;
            options.inodes = Some(self.needs.inodes + 32 + 16 * groups);
        }
        options
    }

    /// Makes a volume with enough space for the content. `make` makes a volume with the size of the file.
    pub(super) fn make(
        &mut self,
        make: impl Fn(u64) -> Result<Superblock, Failure>,
    ) -> Result<Superblock, Failure> {
        // The largest size that has proved too small, and the smallest size that has proved large enough.
        let (mut least, mut enough) = (0, None);
        for _ in 0..TRIES {
            self.stop.check()?;
            if self.size > LARGEST {
                let needs = self.needs.bytes.div_ceil(MIB);
                return Err(Failure::no_space(format!(
                    "the sources need {needs}M, more than the largest possible volume"
                )));
            }
            self.size = self.size.next_multiple_of(STEP);
            self.image.empty(self.size)?;
            let made = match make(self.size) {
                // The size is too small even for the metadata of the volume, so the loop must try a larger size.
                Err(failure) if failure.is_for_space() => None,
                made => Some(made?),
            };
            let next = match made {
                None => self.size.saturating_mul(2),
                Some(made) => {
                    let (room, wanted) = (room_for_files(&made), self.wanted());
                    if room < wanted {
                        self.size.saturating_add(wanted - room)
                    } else if self.needs.inodes + 16 > u64::from(made.inodes_count) {
                        self.size.saturating_mul(2)
                    } else if self.plan.size != Size::Shrink || room - wanted < 2 * STEP {
                        return Ok(made);
                    } else {
                        self.size - (room - wanted) / STEP * STEP
                    }
                }
            };
            if next < self.size {
                enough = Some(self.size);
            } else {
                least = self.size;
            }
            self.size = match enough {
                None => next,
                Some(enough) if enough <= least + STEP => break,
                Some(enough) if least < next && next < enough => next,
                Some(enough) => least.midpoint(enough),
            };
        }
        self.size = enough.unwrap_or(self.size);
        self.image.empty(self.size)?;
        make(self.size)
    }

    /// Increases the size because the content did not fit: the extent maps of the files needed more space than estimated.
    pub(super) fn grow(&mut self) {
        let more = (self.needs.bytes / 64).max(256 << 10);
        self.needs.bytes = self.needs.bytes.saturating_add(more);
        self.size = self.size.saturating_add(more);
    }

    fn wanted(&self) -> u64 {
        let bytes = self.needs.bytes;
        let spare =
            if self.plan.size == Size::Shrink { bytes / 256 } else { bytes / 10 + 16 * MIB };
        bytes.saturating_add(spare)
    }
}

/// Returns the space for files in a new volume. As in the kernel, some blocks are reserved for the nodes of extent maps: one fiftieth of
/// all blocks, but at most 4096 clusters.
fn room_for_files(made: &Superblock) -> u64 {
    let kept = (made.blocks_count / 50).min(4096 * u64::from(made.cluster_blocks));
    made.free_blocks.saturating_sub(kept) * made.block_size.bytes() as u64
}
