//! Searches for clusters that are in use but past the end of the file. Such clusters mean that the file was truncated.

use super::super::file::ImageFile;
use super::header::Header;
use super::metadata::table;
use super::refcounts::refcount;
use crate::error::Result;

/// The largest number of refcount blocks to search. A valid image has one block for the clusters past the end of its file. A search of more
/// blocks would only delay the opening of a damaged image.
const SEARCHED: usize = 16;

/// Whether a cluster past the end of the file has a refcount.
///
/// # Errors
/// `Io`.
pub(super) fn has_clusters(file: &ImageFile, header: &Header) -> Result<bool> {
    let (cluster, bits) = (header.cluster(), 1_u64 << header.refcount_order);
    let per_block = cluster * 8 / bits;
    // The file may end within its last cluster.
    let first = file.len().div_ceil(cluster);
    let index = first / per_block;
    let Some(entries) = (header.refcounts_len / 8).checked_sub(index) else { return Ok(false) };
    let blocks = table(file, header.refcounts_at + index * 8, entries)?;
    let used = (index..).zip(blocks).filter(|(_, at)| *at != 0).take(SEARCHED);
    let mut block = vec![0; cluster as usize];
    for (index, at) in used {
        if at >= file.len() {
            return Ok(true);
        }
        file.read_at(&mut block, at)?;
        let skip = first.saturating_sub(index * per_block);
        if (skip..per_block).any(|number| refcount(&block, number, bits) != 0) {
            return Ok(true);
        }
    }
    Ok(false)
}
