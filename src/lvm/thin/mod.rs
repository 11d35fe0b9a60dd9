//! Thin volumes. The metadata of a pool map each block of a thin volume to a block of the pool's data. Snapshots share blocks with their
//! origin.
//!
//! The format is the format of `thin-pool`, a target of the device mapper. ironmap reads the last committed transaction.

mod tree;

use std::fmt;
use std::sync::Arc;

use self::tree::{Nodes, Spot, checksum, corrupt};
use crate::device::{AnyQueue, Device, InRange, Limits, OnlyReads, QueueOptions, Ranges};
use crate::error::{Error, ErrorKind, Result};
use crate::partition::{u32_at, u64_at};
use crate::units::DevOffset;

/// The length of a block of the metadata, in bytes.
const BLOCK: u64 = 4096;
const SECTOR: u64 = 512;
const MAGIC: u64 = 27_022_010;
/// The CRC of the superblock is combined with this value by exclusive or.
const SALT: u32 = 160_774;
/// The versions of the metadata that Linux writes.
const VERSIONS: [u32; 2] = [1, 2];
/// A flag in the superblock: Linux does not change these metadata before a check.
const NEEDS_CHECK: u32 = 1;
/// The largest length of a data block in sectors: 1 GiB.
const LARGEST: u64 = 1 << 21;
/// The length in bytes of a value in the tree of mappings, and of a value in the tree of volumes.
const MAPPING: usize = 8;
const DETAILS: usize = 24;
/// The number of low bits of a mapping that contain a time. The upper bits contain the number of the data block.
const TIME_BITS: u32 = 24;

/// A pool as the LVM metadata describe it, and one of its thin volumes.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    /// The name of the pool.
    pub(super) pool: &'a str,
    /// The transaction number of the last change that LVM made to the pool.
    pub(super) transaction: u64,
    /// The length of a data block in bytes.
    pub(super) chunk: u64,
    /// The number of the thin volume in the pool, and its length in bytes.
    pub(super) volume: u64,
    pub(super) len: u64,
}

/// The superblock of a pool's metadata.
struct Superblock {
    transaction: u64,
    needs_check: bool,
    /// The roots of the trees of mappings and of volumes.
    mappings: u64,
    volumes: u64,
    /// The length of a data block in bytes.
    chunk: u64,
}

impl Superblock {
    fn read(device: &dyn Device) -> Result<Self> {
        if device.size() < BLOCK {
            return Err(corrupt("the device is too short"));
        }
        let mut bytes = vec![0; BLOCK as usize];
        device.read_exact_at(&mut bytes, DevOffset(0))?;
        if u64_at(&bytes, 32) != MAGIC {
            return Err(corrupt("there is no superblock"));
        }
        if checksum(&bytes, SALT) != u32_at(&bytes, 0) || u64_at(&bytes, 8) != 0 {
            return Err(corrupt("the superblock has a wrong checksum"));
        }
        let (version, features) = (u32_at(&bytes, 40), u32_at(&bytes, 360));
        if !VERSIONS.contains(&version) || features != 0 {
            return Err(Error::unsupported(format!(
                "the thin pool metadata have the version {version} and the features 0x{features:x}, which are not supported"
            )));
        }
        let chunk = u64::from(u32_at(&bytes, 336));
        if chunk == 0 || chunk > LARGEST || u64::from(u32_at(&bytes, 340)) * SECTOR != BLOCK {
            return Err(corrupt("the superblock has an invalid block size"));
        }
        Ok(Self {
            transaction: u64_at(&bytes, 48),
            needs_check: u32_at(&bytes, 4) & NEEDS_CHECK != 0,
            mappings: u64_at(&bytes, 320),
            volumes: u64_at(&bytes, 328),
            chunk: chunk * SECTOR,
        })
    }
}

/// The blocks of a thin volume.
#[derive(Debug)]
struct Blocks {
    nodes: Nodes,
    /// The block number of the root of the thin volume's tree.
    root: u64,
    data: Arc<dyn Device>,
    /// The external origin: the volume that contains the blocks that are not in the pool. Without an origin, such blocks read as zeros.
    origin: Option<Arc<dyn Device>>,
    chunk: u64,
    size: u64,
}

/// Opens a thin volume. Ignored faults are added to `faults`.
///
/// # Errors
/// `Unsupported` for a pool that LVM would not activate; `Corrupt` for damaged metadata; `Io`.
pub(super) fn open(
    wanted: &Wanted<'_>,
    metadata: Arc<dyn Device>,
    data: Arc<dyn Device>,
    origin: Option<Arc<dyn Device>>,
    faults: &mut Vec<String>,
) -> Result<Arc<dyn Device>> {
    let pool = wanted.pool;
    let found = Superblock::read(&*metadata)?;
    if found.transaction != wanted.transaction {
        return Err(Error::unsupported(format!(
            "the thin pool {pool} is at transaction {}, but the metadata of LVM say {}: lvchange -ay completes the transaction or reports the fault",
            found.transaction, wanted.transaction
        )));
    }
    if found.chunk != wanted.chunk {
        return Err(corrupt(format_args!(
            "the data blocks of {pool} have {} bytes, but {} in the metadata of LVM",
            found.chunk, wanted.chunk
        )));
    }
    if found.needs_check {
        faults.push(format!("the metadata of the thin pool {pool} need a check (thin_check)"));
    }
    let blocks = metadata.size() / BLOCK;
    let nodes = Nodes::new(metadata, blocks);
    let volume = wanted.volume;
    let exists = nodes.get(found.volumes, volume, DETAILS)?.is_some();
    let root = nodes.get(found.mappings, volume, MAPPING)?;
    let Some(root) = root.filter(|_| exists) else {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("the thin pool {pool} has no volume with the number {volume}"),
        ));
    };
    let limits = *data.limits();
    let limits = origin.iter().fold(limits, |all, origin| all.joined(*origin.limits()));
    let (chunk, size) = (found.chunk, wanted.len);
    let blocks = Blocks { nodes, root, data, origin, chunk, size };
    // A read of the first block checks that the root of the tree is valid.
    blocks.run(0, 1)?;
    let limits = Limits { read_only: true, atomic_write: 0, nowait: false, poll: false, ..limits };
    Ok(Arc::new(Thin { blocks: Arc::new(blocks), limits }))
}

impl Blocks {
    /// Returns the data block of a block of the volume, and a number of blocks, at most `most`. This many consecutive blocks of the volume
    /// are in consecutive data blocks. For blocks that are not in the pool, the data block is `None`.
    fn run(&self, block: u64, most: u64) -> Result<(Option<u64>, u64)> {
        let Spot { leaf, index, end } = self.nodes.find(self.root, block, MAPPING)?;
        let index = match index {
            Ok(index) => index,
            Err(next) => {
                let next = leaf.keys.get(next).copied().unwrap_or(end);
                return Ok((None, (next - block).min(most)));
            }
        };
        let data = leaf.values[index] >> TIME_BITS;
        let following = leaf.keys[index..].iter().zip(&leaf.values[index..]).zip(0..most);
        let is_next = |((key, value), step): &((&u64, &u64), u64)| {
            **key - block == *step && (**value >> TIME_BITS).checked_sub(*step) == Some(data)
        };
        let count = following.take_while(is_next).count() as u64;
        let blocks = self.data.size() / self.chunk;
        if data.checked_add(count).is_none_or(|end| end > blocks) {
            return Err(corrupt(format_args!(
                "block {block} of the volume is in block {data} of the pool, which has only {blocks} blocks"
            )));
        }
        Ok((Some(data), count))
    }

    /// Reads one run of blocks from the position `at` on. Returns the number of bytes.
    fn read_run(&self, buf: &mut [u8], at: u64) -> Result<usize> {
        let (block, inside) = (at / self.chunk, at % self.chunk);
        let most = (inside + buf.len() as u64).div_ceil(self.chunk);
        let (data, count) = self.run(block, most)?;
        let len = (count * self.chunk - inside).min(buf.len() as u64) as usize;
        let buf = &mut buf[..len];
        match (data, &self.origin) {
            (Some(data), _) => {
                self.data.read_exact_at(buf, DevOffset(data * self.chunk + inside))?;
            }
            (None, Some(origin)) => {
                // A thin volume can be longer than its origin. The rest reads as zeros.
                let rest = origin.size().saturating_sub(at).min(len as u64) as usize;
                if rest > 0 {
                    origin.read_exact_at(&mut buf[..rest], DevOffset(at))?;
                }
                buf[rest..].fill(0);
            }
            (None, None) => buf.fill(0),
        }
        Ok(len)
    }
}

impl Ranges for Blocks {
    fn read(&self, buf: &mut [u8], at: DevOffset) -> Result<()> {
        if at.0.checked_add(buf.len() as u64).is_none_or(|end| end > self.size) {
            return Err(Error::invalid(format!("byte {at} is past the end of the volume")));
        }
        let mut done = 0;
        while done < buf.len() {
            // The loop ends, because each run has at least one byte.
            done += self.read_run(&mut buf[done..], at.0 + done as u64)?;
        }
        Ok(())
    }
}

/// The device of a thin volume.
struct Thin {
    blocks: Arc<Blocks>,
    limits: Limits,
}

impl fmt::Debug for Thin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.blocks.fmt(f)
    }
}

impl Device for Thin {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn size(&self) -> u64 {
        self.blocks.size
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        self.blocks.read(buf, at)
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        Ok(OnlyReads::queue(Arc::clone(&self.blocks) as Arc<dyn Ranges>, options))
    }
}
