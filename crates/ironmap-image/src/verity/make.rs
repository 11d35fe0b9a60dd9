//! Makes a hash tree, which requires one read of the data.

use std::io::IoSlice;

use ironmap::units::DevOffset;
use ironmap::{Buffer, Result};
use sha2::Sha256;

use super::{DIGEST, Hash, Level, Parameters, Place, buffer, digest};

/// The length of a read of the data.
const CHUNK: u64 = 1 << 20;

/// Makes the hash tree of `data` at `hashes`, and returns the root hash. The tree needs [`Parameters::tree_size`] bytes. `done` is called
/// with the number of bytes that were read; an error that it returns ends the work.
///
/// # Errors
/// `InvalidInput` for impossible parameters; the errors of the devices and of `done`.
pub fn make(
    data: Place<'_>,
    hashes: Place<'_>,
    parameters: &Parameters,
    done: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Hash> {
    parameters.validate()?;
    let mut tree = Tree::new(hashes, parameters)?;
    let block = u64::from(parameters.data_block);
    let end = parameters.data_blocks * block;
    let mut chunk = buffer(CHUNK.max(block) as usize)?;
    let zeros = digest(&tree.salted, &chunk[..block as usize]);
    // The next range of the device that may contain data. The bytes before this range are zeros.
    let mut filled = 0..0;
    let mut at = 0;
    while at < end {
        if at >= filled.end {
            let range = data.device.data_from(DevOffset(data.start + at))?;
            let [from, to] = [range.start.0, range.end.0].map(|at| at.saturating_sub(data.start));
            // Blocks that are only partly in the range count as data.
            filled = from / block * block..to.max(at + 1).next_multiple_of(block);
        }
        if at < filled.start {
            let until = filled.start.min(end);
            while at < until {
                tree.add(0, zeros)?;
                at += block;
            }
            done(at)?;
            continue;
        }
        let len = (end.min(filled.end) - at).min(chunk.len() as u64) as usize;
        let bytes = &mut chunk[..len];
        data.device.read_exact_at(bytes, DevOffset(data.start + at))?;
        for bytes in bytes.chunks_exact(block as usize) {
            let hash = digest(&tree.salted, bytes);
            tree.add(0, hash)?;
        }
        at += len as u64;
        done(at)?;
    }
    tree.finish()
}

/// A hash tree that is being made. For each level, only the block that is being filled is in memory.
struct Tree<'a> {
    hashes: Place<'a>,
    parameters: &'a Parameters,
    salted: Sha256,
    levels: Vec<Growing>,
    root: Hash,
}

struct Growing {
    level: Level,
    /// The number of blocks that were written.
    written: u64,
    /// The number of bytes in the block that is being filled.
    used: usize,
    block: Buffer,
}

impl<'a> Tree<'a> {
    fn new(hashes: Place<'a>, parameters: &'a Parameters) -> Result<Self> {
        let growing = |level| {
            let block = buffer(parameters.hash_block as usize)?;
            Ok(Growing { level, written: 0, used: 0, block })
        };
        let levels = parameters.levels().into_iter().map(growing).collect::<Result<_>>()?;
        Ok(Self { hashes, parameters, salted: parameters.salted(), levels, root: [0; DIGEST] })
    }

    /// Adds a digest to a level. The digest of the last level is the root hash.
    fn add(&mut self, index: usize, hash: Hash) -> Result<()> {
        let Some(growing) = self.levels.get_mut(index) else {
            self.root = hash;
            return Ok(());
        };
        growing.block[growing.used..growing.used + DIGEST].copy_from_slice(&hash);
        growing.used += DIGEST;
        if growing.used == growing.block.len() { self.complete(index) } else { Ok(()) }
    }

    /// Writes the block that is being filled, and adds its digest to the level above.
    fn complete(&mut self, index: usize) -> Result<()> {
        let growing = &mut self.levels[index];
        let size = growing.block.len() as u64;
        let at = self.hashes.start + (growing.level.first + growing.written) * size;
        self.hashes.device.write_all_at(&[IoSlice::new(&growing.block)], DevOffset(at), false)?;
        let hash = digest(&self.salted, &growing.block);
        growing.written += 1;
        growing.used = 0;
        growing.block.fill(0);
        self.add(index + 1, hash)
    }

    /// Writes the blocks that are not full, from the lowest level up, and then the superblock.
    fn finish(mut self) -> Result<Hash> {
        for index in 0..self.levels.len() {
            if self.levels[index].used > 0 {
                self.complete(index)?;
            }
        }
        let mut block = buffer(self.parameters.hash_block as usize)?;
        let superblock = self.parameters.superblock();
        block[..superblock.len()].copy_from_slice(&superblock);
        let at = DevOffset(self.hashes.start);
        self.hashes.device.write_all_at(&[IoSlice::new(&block)], at, false)?;
        self.hashes.device.flush()?;
        Ok(self.root)
    }
}
