//! Creates empty qcow2 images.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use super::super::options::{Compression, CreateOptions};
use super::header::{COMPRESSION, MAGIC, MAX_WRITTEN_L1, V3_LEN};
use crate::error::{Errno, Error, Result};

/// The length of the header, with the compression type and the end of the extensions.
const HEADER_LEN: usize = V3_LEN + 8;

/// Writes an empty qcow2 image to a file. The file must be missing or empty.
///
/// # Errors
/// `InvalidInput` for a wrong size; `Io`, with EEXIST if the file is not empty.
pub fn create(path: &Path, options: &CreateOptions) -> Result<()> {
    let bytes = empty(options)?;
    let failed = |errno| Error::io(errno, path.display().to_string());
    let failed_at =
        |error: std::io::Error| failed(Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)));
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    let mut file = file.map_err(failed_at)?;
    if file.metadata().map_err(failed_at)?.len() > 0 {
        return Err(failed(Errno::EEXIST));
    }
    file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(failed_at)
}

/// Returns the content of an empty image: the header, the refcount table, the refcount blocks and the L1 table.
fn empty(options: &CreateOptions) -> Result<Vec<u8>> {
    let CreateOptions { size, cluster_size, compression } = *options;
    let cluster = u64::from(cluster_size);
    if !(512..=2 << 20).contains(&cluster) || !cluster.is_power_of_two() {
        return Err(Error::invalid(format!(
            "the cluster size {cluster} is not a power of two from 512 to 2097152"
        )));
    }
    // Refcounts have 16 bits. The refcount table is one cluster long, which limits the number of refcount blocks, and therefore the length
    // of the L1 table.
    let l1_entries = size.div_ceil(cluster * (cluster / 8));
    let (l1_clusters, per_block) = ((l1_entries * 8).div_ceil(cluster), cluster / 2);
    let blocks = (2 + l1_clusters).div_ceil(per_block - 1);
    let fits = l1_entries <= MAX_WRITTEN_L1 && blocks <= cluster / 8;
    if size == 0 || !size.is_multiple_of(512) || !fits {
        return Err(Error::invalid(format!(
            "a qcow2 image with clusters of {cluster} bytes cannot have a disk of {size} bytes"
        )));
    }
    let l1_at = (2 + blocks) * cluster;
    let used = 2 + blocks + l1_clusters;
    let mut bytes = vec![0; (used * cluster) as usize];
    let mut put = |at: u64, value: &[u8]| {
        bytes[at as usize..][..value.len()].copy_from_slice(value);
    };
    let is_zstd = compression == Compression::Zstd;
    put(0, MAGIC);
    put(4, &3_u32.to_be_bytes());
    put(20, &cluster.ilog2().to_be_bytes());
    put(24, &size.to_be_bytes());
    put(36, &(l1_entries as u32).to_be_bytes());
    put(40, &l1_at.to_be_bytes());
    put(48, &cluster.to_be_bytes());
    put(56, &1_u32.to_be_bytes());
    put(72, &(if is_zstd { COMPRESSION } else { 0 }).to_be_bytes());
    put(96, &4_u32.to_be_bytes());
    put(100, &(HEADER_LEN as u32).to_be_bytes());
    put(V3_LEN as u64, &[u8::from(is_zstd)]);
    for block in 0..blocks {
        put(cluster + block * 8, &((2 + block) * cluster).to_be_bytes());
    }
    // The refcount blocks are adjacent clusters, so the refcounts of all used clusters are contiguous in the file.
    for number in 0..used {
        put(2 * cluster + number * 2, &1_u16.to_be_bytes());
    }
    Ok(bytes)
}
