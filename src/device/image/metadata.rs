//! The clusters of a qcow2 image that contain its tables. ironmap writes an image only if each of these clusters is used once and has the
//! refcount 1. Otherwise imago could treat a table's cluster as free, and allocate it for data.

use std::collections::{HashMap, HashSet};

use super::file::ImageFile;
use super::header::Header;
use crate::error::{Place, Result};
use crate::units::FsBlock;

/// The bits of an L1 table's entry: the bits that contain the offset of an L2 table, and the bit that states that no other entry points to
/// this L2 table.
pub(super) const L2_OFFSET: u64 = 0x00FF_FFFF_FFFF_FE00;
const COPIED: u64 = 1 << 63;

/// The offsets of the tables to which the L1 table and the refcount table point.
pub(super) struct Metadata {
    pub(super) l2: HashSet<u64>,
    pub(super) refcount_blocks: HashSet<u64>,
}

impl Metadata {
    /// Reads and checks the positions and the refcounts of all tables.
    pub(super) fn read(file: &ImageFile, header: &Header) -> Result<Self> {
        let mut clusters = Clusters { file, header, uses: HashMap::new() };
        clusters.add(0, 1, Place::new("qcow2 header"))?;
        let l1 = Place::new("qcow2 L1 table");
        clusters.add(header.l1_at, header.l1_entries * 8, l1)?;
        let refcounts = Place::new("qcow2 refcount table");
        clusters.add(header.refcounts_at, header.refcounts_len, refcounts)?;
        let blocks = table(file, header.refcounts_at, header.refcounts_len / 8)?;
        // If there is no first refcount block, imago searches for one in an endless loop.
        if blocks.first().is_none_or(|first| *first == 0) {
            return Err(refcounts
                .block(FsBlock(0))
                .corrupt("the first entry belongs to the cluster of the header, but is 0"));
        }
        let mut found = Self { l2: HashSet::new(), refcount_blocks: HashSet::new() };
        for (index, at) in (0_u64..).zip(&blocks).filter(|(_, at)| **at != 0) {
            clusters.add(*at, header.cluster(), refcounts.block(FsBlock(index)))?;
            found.refcount_blocks.insert(*at);
        }
        for (index, entry) in (0_u64..).zip(table(file, header.l1_at, header.l1_entries)?) {
            let (at, place) = (entry & L2_OFFSET, l1.block(FsBlock(index)));
            if at == 0 {
                continue;
            }
            if entry & COPIED == 0 {
                return Err(place.corrupt(
                    "an L2 table is shared with a snapshot, so the image can only be read",
                ));
            }
            clusters.add(at, header.cluster(), place)?;
            found.l2.insert(at);
        }
        clusters.check_refcounts(&blocks)?;
        Ok(found)
    }
}

/// The clusters that tables use. The value is the name of the table in the cluster.
struct Clusters<'a> {
    file: &'a ImageFile,
    header: &'a Header,
    uses: HashMap<u64, Place>,
}

impl Clusters<'_> {
    /// Adds the clusters of a table.
    fn add(&mut self, at: u64, len: u64, place: Place) -> Result<()> {
        let cluster = self.header.cluster();
        let end = at.checked_add(len).filter(|_| at.is_multiple_of(cluster));
        // The file may end within its last cluster, so its length is rounded up to whole clusters.
        let most = self.file.len().next_multiple_of(cluster);
        let Some(end) = end.filter(|end| *end <= most) else {
            return Err(place.corrupt(format!(
                "the table at byte {at} is unaligned or past the end of the file"
            )));
        };
        for cluster in (at..end).step_by(cluster as usize) {
            if let Some(other) = self.uses.insert(cluster, place) {
                let what = format!("the cluster at byte {cluster} is also in use by the {other}");
                return Err(place.corrupt(what));
            }
        }
        Ok(())
    }

    /// Checks that each of these clusters has the refcount 1. The refcount blocks are read in ascending order, each of them once.
    fn check_refcounts(&self, blocks: &[u64]) -> Result<()> {
        let (cluster, bits) = (self.header.cluster(), 1_u64 << self.header.refcount_order);
        let per_block = cluster * 8 / bits;
        let mut all: Vec<_> = self.uses.iter().map(|(at, place)| (at / cluster, *place)).collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        let mut block = vec![0; cluster as usize];
        for group in all.chunk_by(|one, next| one.0 / per_block == next.0 / per_block) {
            let first = group[0].0 / per_block * per_block;
            let at = usize::try_from(first / per_block).ok().and_then(|index| blocks.get(index));
            match at {
                Some(at) if *at != 0 => self.file.read_at(&mut block, *at)?,
                _ => block.fill(0),
            }
            for (number, place) in group {
                let count = refcount(&block, number - first, bits);
                if count != 1 {
                    let at = number * cluster;
                    let what = format!(
                        "the cluster at byte {at} has refcount {count} instead of 1: qemu-img check -r all repairs the image"
                    );
                    return Err(place.corrupt(what));
                }
            }
        }
        Ok(())
    }
}

/// Reads a refcount from a refcount block. If a refcount is shorter than a byte, the first refcount of a byte is in its lowest bits. Longer
/// refcounts are big-endian.
fn refcount(block: &[u8], index: u64, bits: u64) -> u64 {
    let at = (index * bits / 8) as usize;
    if bits < 8 {
        let shift = index * bits % 8;
        return u64::from(block[at]) >> shift & ((1 << bits) - 1);
    }
    let bytes = &block[at..at + (bits / 8) as usize];
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Reads a table of big-endian numbers. The check of the header has limited the table's length.
pub(super) fn table(file: &ImageFile, at: u64, entries: u64) -> Result<Vec<u64>> {
    let mut bytes = vec![0; (entries * 8) as usize];
    file.read_at(&mut bytes, at)?;
    let (numbers, _) = bytes.as_chunks::<8>();
    Ok(numbers.iter().map(|number| u64::from_be_bytes(*number)).collect())
}
