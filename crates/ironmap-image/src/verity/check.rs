//! Verifies data with their hash tree.

use ironmap::Result;
use ironmap::device::Device;
use ironmap::units::DevOffset;

use super::{BLOCK_SIZES, DIGEST, Hash, Parameters, Place, buffer, digest};

/// The number of hash blocks or data blocks that are read together.
const BATCH: u64 = 64;

/// The result of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// All blocks match the root hash.
    Good,
    /// The root hash belongs to another tree, or the top block of the tree is damaged.
    OtherRoot {
        /// The root hash of the tree, computed from its top block.
        found: Hash,
    },
    /// The first block of the hash tree that does not match. The levels are verified from the top to the bottom.
    HashBlock {
        /// The position of the block on its device, in bytes.
        at: u64,
    },
    /// The first data block that does not match.
    DataBlock {
        /// The number of the block.
        number: u64,
        /// The position of the block on its device, in bytes.
        at: u64,
    },
}

/// Verifies all blocks of `data`. The hash tree is verified first, from the root hash down. `done` is called with the number of data bytes
/// that were read; an error that it returns ends the work.
///
/// # Errors
/// The errors of [`Parameters::read`]; `InvalidInput` if the data or the tree end past their devices; the errors of the devices and of
/// `done`.
pub fn check(
    data: Place<'_>,
    hashes: Place<'_>,
    root: &Hash,
    done: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Checked> {
    let parameters = Parameters::read(hashes)?;
    let size = u64::from(parameters.hash_block);
    let salted = parameters.salted();
    let mut block = buffer(parameters.hash_block as usize)?;
    let levels = parameters.levels();
    // The position of the next higher level of the tree, in bytes.
    let mut above = None;
    for level in levels.iter().rev() {
        let start = hashes.start + level.first * size;
        match above {
            None => {
                hashes.device.read_exact_at(&mut block, DevOffset(start))?;
                let found = digest(&salted, &block);
                if found != *root {
                    return Ok(Checked::OtherRoot { found });
                }
            }
            Some(above) => {
                let of = Blocks { device: hashes.device, start, size, count: level.blocks };
                let bad = of.first_bad(hashes.device, above, &salted, &mut |_| Ok(()))?;
                if let Some(number) = bad {
                    return Ok(Checked::HashBlock { at: start + number * size });
                }
            }
        }
        above = Some(start);
    }
    let (start, size) = (data.start, u64::from(parameters.data_block));
    let Some(above) = above else {
        let mut block = buffer(parameters.data_block as usize)?;
        data.device.read_exact_at(&mut block, DevOffset(start))?;
        let found = digest(&salted, &block);
        return Ok(if found == *root { Checked::Good } else { Checked::OtherRoot { found } });
    };
    let of = Blocks { device: data.device, start, size, count: parameters.data_blocks };
    let bad = of.first_bad(hashes.device, above, &salted, done)?;
    Ok(bad.map_or(Checked::Good, |number| Checked::DataBlock { number, at: start + number * size }))
}

/// The blocks of one level of the tree, or the data blocks.
struct Blocks<'a> {
    device: &'a dyn Device,
    start: u64,
    size: u64,
    count: u64,
}

impl Blocks<'_> {
    /// Returns the number of the first block whose digest differs from the stored digest. The stored digests begin at byte `above`.
    fn first_bad(
        &self,
        hashes: &dyn Device,
        above: u64,
        salted: &sha2::Sha256,
        done: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Option<u64>> {
        let size = self.size as usize;
        let (mut blocks, mut stored) =
            (buffer(size * BATCH as usize)?, buffer(DIGEST * BATCH as usize)?);
        let mut at = 0;
        while at < self.count {
            let count = BATCH.min(self.count - at) as usize;
            let (blocks, stored) = (&mut blocks[..count * size], &mut stored[..count * DIGEST]);
            self.device.read_exact_at(blocks, DevOffset(self.start + at * self.size))?;
            // The number of digests in a full hash block is a power of two, so the digests of a level are stored without gaps.
            hashes.read_exact_at(stored, DevOffset(above + at * DIGEST as u64))?;
            let pairs = blocks.chunks_exact(size).zip(stored.chunks_exact(DIGEST));
            for (number, (block, stored)) in (at..).zip(pairs) {
                if digest(salted, block) != stored {
                    return Ok(Some(number));
                }
            }
            at += count as u64;
            done(at * self.size)?;
        }
        Ok(None)
    }
}

/// Finds a hash tree that was appended to its data, and returns the position of the superblock, or `None` if there is no tree. The tree
/// ends at the end of the device, so its possible positions follow from the size of the device.
///
/// # Errors
/// `Io`.
pub fn find(device: &dyn Device) -> Result<Option<u64>> {
    let size = device.size();
    let sizes =
        || (BLOCK_SIZES.start().ilog2()..=BLOCK_SIZES.end().ilog2()).map(|bits| 1_u32 << bits);
    for (data_block, hash_block) in sizes().flat_map(|data| sizes().map(move |hash| (data, hash))) {
        let parameters = |data_blocks| {
            let (salt, uuid) = (Vec::new(), [0; 16]);
            Parameters { data_block, hash_block, data_blocks, salt, uuid }
        };
        let begin =
            |blocks: u64| (blocks * u64::from(data_block)).next_multiple_of(u64::from(hash_block));
        // The largest number of data blocks that leaves space for their tree.
        let (mut least, mut most) = (0, size / u64::from(data_block) + 1);
        while least + 1 < most {
            let middle = least.midpoint(most);
            let fits = begin(middle) + parameters(middle).tree_size() <= size;
            *(if fits { &mut least } else { &mut most }) = middle;
        }
        if least == 0 {
            continue;
        }
        let start = begin(least);
        match Parameters::read(Place { device, start }) {
            // If a hash block is larger than a data block, several numbers of data blocks result in the same position of the tree.
            Ok(read)
                if (read.data_block, read.hash_block) == (data_block, hash_block)
                    && begin(read.data_blocks) == start
                    && start + read.tree_size() == size =>
            {
                return Ok(Some(start));
            }
            Err(error) if matches!(error.kind(), ironmap::ErrorKind::Io(_)) => return Err(error),
            _ => {}
        }
    }
    Ok(None)
}
