//! The clusters of a qcow2 image that contain its tables. ironmap writes to an image only if each of these clusters is used once and has
//! the refcount 1. If the refcount were 0, the cluster of a table could be allocated for data.

use std::collections::{HashMap, HashSet};

use super::super::file::ImageFile;
use super::bitmaps::Directory;
use super::entry::{COPIED, OFFSET};
use super::header::Header;
use super::refcounts::{Refcounts, refcount};
use crate::error::{Place, Result};
use crate::sorting::Sorting;
use crate::units::FsBlock;

/// Reads the refcount table of an image before the image is written. Checks the positions and the refcounts of all tables. `l1` contains
/// the entries of the L1 table.
pub(super) fn check(file: &ImageFile, header: &Header, l1: &[u64]) -> Result<Refcounts> {
    let mut clusters = Clusters { file, header, uses: HashMap::new() };
    clusters.add(0, 1, Place::new("qcow2 header"))?;
    let l1_place = Place::new("qcow2 L1 table");
    clusters.add(header.l1_at, header.l1_entries * 8, l1_place)?;
    let refcounts = Place::new("qcow2 refcount table");
    clusters.add(header.refcounts_at, header.refcounts_len, refcounts)?;
    let blocks = table(file, header.refcounts_at, header.refcounts_len / 8)?;
    for (index, at) in (0_u64..).zip(&blocks).filter(|(_, at)| **at != 0) {
        clusters.add(*at, header.cluster(), refcounts.block(FsBlock(index)))?;
    }
    if let Some(directory) = header.bitmaps {
        clusters.add(directory.at, directory.len, Directory::place())?;
    }
    for (index, entry) in (0_u64..).zip(l1) {
        let (at, place) = (entry & OFFSET, l1_place.block(FsBlock(index)));
        if at == 0 {
            continue;
        }
        if entry & COPIED == 0 {
            return Err(place.corrupt(
                "an L2 table is shared with a snapshot, so the image can be read but not written",
            ));
        }
        clusters.add(at, header.cluster(), place)?;
    }
    clusters.check_refcounts(&blocks)?;
    let tables: HashSet<u64> = clusters.uses.keys().map(|at| at / header.cluster()).collect();
    Ok(Refcounts::new(header, blocks, tables))
}

/// The positions of the clusters that contain tables, each with the name of its table.
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
        all.order_by_key(|(number, _)| *number);
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

/// Reads a table of big-endian numbers. The header check has limited the table's length.
pub(super) fn table(file: &ImageFile, at: u64, entries: u64) -> Result<Vec<u64>> {
    let mut bytes = vec![0; (entries * 8) as usize];
    file.read_at(&mut bytes, at)?;
    let (numbers, _) = bytes.as_chunks::<8>();
    Ok(numbers.iter().map(|number| u64::from_be_bytes(*number)).collect())
}
