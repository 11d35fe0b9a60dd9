//! Compresses and decompresses the clusters of a qcow2 image.

use std::io::Read as _;

use miniz_oxide::inflate::{TINFLStatus, decompress_slice_iter_to_slice};
use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// The largest window of a zstd frame. A cluster has at most 2 MiB, but a compressor may declare a larger window.
const MAX_WINDOW: u64 = 8 << 20;
/// The compression level of deflate, from 1 to 10. zlib's default is 6.
const LEVEL: u8 = 6;

/// Decompresses a cluster. The data must fill `cluster`. Bytes after the compressed data are ignored, because the L2 table records the
/// length only in whole sectors.
///
/// # Errors
/// The reason why the cluster cannot be decompressed.
pub(super) fn unpack(packed: &[u8], cluster: &mut [u8], is_zstd: bool) -> Result<(), String> {
    if is_zstd {
        let decoder = StreamingDecoder::new_with_max_window_size(packed, MAX_WINDOW);
        let mut decoder = decoder.map_err(|error| error.to_string())?;
        return decoder.read_exact(cluster).map_err(|error| error.to_string());
    }
    let wanted = cluster.len();
    match decompress_slice_iter_to_slice(cluster, std::iter::once(packed), false, true) {
        // The compressed data may decompress to more than a cluster. QEMU accepts such data too.
        Err(TINFLStatus::HasMoreOutput) => Ok(()),
        Ok(len) if len == wanted => Ok(()),
        Ok(len) => Err(format!("the result has {len} bytes instead of {wanted}")),
        Err(status) => Err(format!("the data are damaged ({status:?})")),
    }
}

/// Compresses a cluster.
pub(super) fn pack(cluster: &[u8], is_zstd: bool) -> Vec<u8> {
    if is_zstd {
        return compress_to_vec(cluster, CompressionLevel::Fastest);
    }
    miniz_oxide::deflate::compress_to_vec(cluster, LEVEL)
}
