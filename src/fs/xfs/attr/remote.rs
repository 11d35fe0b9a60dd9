//! Attribute values and link targets in separate blocks.

use super::LONGEST_VALUE;
use crate::error::{Place, Result};
use crate::fs::xfs::disk::attr::{REMOTE, REMOTE_HEADER};
use crate::fs::xfs::fork::Fork;
use crate::fs::xfs::header::{Header, array};
use crate::fs::xfs::inode::XfsInode;
use crate::iomap::ExtentMap;
use crate::units::FsBlock;

impl XfsInode {
    pub(super) fn remote_value(
        &self,
        fork: &Fork,
        map: Option<&ExtentMap>,
        first: u32,
        len: u32,
    ) -> Result<Vec<u8>> {
        let place = Place::new("attribute value").inode(self.stat.inode);
        if len > LONGEST_VALUE {
            return Err(place.field("valuelen").corrupt(format!("{len} bytes")));
        }
        let (len, mut content) = (len as usize, Vec::with_capacity(len as usize));
        let mut number = u64::from(first);
        while content.len() < len {
            let Some(blocks) = self.fs_blocks(fork, map, number, 1)? else {
                return Err(place.corrupt(format!(
                    "the attribute's value has no block {number}: the map has a hole there"
                )));
            };
            self.remote_part(&blocks, len, REMOTE, &mut content, place)?;
            number += 1;
        }
        Ok(content)
    }

    /// Appends one part of a value or target to `content`. `len` is the length of the complete value or target. The part is in `blocks`. On
    /// a volume with checksums, these blocks have one header.
    pub(in crate::fs::xfs) fn remote_part(
        &self,
        blocks: &[FsBlock],
        len: usize,
        magic: u32,
        content: &mut Vec<u8>,
        place: Place,
    ) -> Result<()> {
        let (place, done) = (place.block(blocks[0]), content.len());
        let block = self.fs.metadata.blocks(blocks)?;
        if !self.fs.superblock.is_v5() {
            content.extend_from_slice(&block[..block.len().min(len - done)]);
            return Ok(());
        }
        let part = (block.len() - REMOTE_HEADER).min(len - done);
        let field = |at: usize| u32::from_be_bytes(array(&block, at));
        if field(0) != magic {
            return Err(place.field("magic").corrupt(format!("{:#010x}", field(0))));
        }
        self.fs.check_header(&block, Header::REMOTE, blocks, self.stat.inode, place)?;
        if field(4) as usize != done || field(8) as usize != part {
            let what = format!(
                "the header records {} bytes at byte {} of the value, but the block should have {part} bytes at byte {done}",
                field(8),
                field(4)
            );
            return Err(place.field("offset").corrupt(what));
        }
        content.extend_from_slice(&block[REMOTE_HEADER..REMOTE_HEADER + part]);
        Ok(())
    }
}
