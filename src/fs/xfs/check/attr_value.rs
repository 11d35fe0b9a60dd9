//! Reads and checks attribute values and symbolic-link targets in separate blocks.

use super::super::disk::attr::{REMOTE, REMOTE_HEADER, SYMLINK};
use super::super::header::{Header, array};
use super::Checker;
use super::found::Found;
use super::map::Map;
use crate::error::Place;
use crate::fs::check::Kind;
use crate::units::FsBlock;

/// The maximum length of a value.
const LONGEST_VALUE: u32 = 64 << 10;

impl Checker<'_> {
    /// Reads the value of an attribute. If a part of the value is missing, the fault is reported, and the result is `None`.
    pub(super) fn remote_value(
        &mut self,
        found: &Found,
        map: &Map,
        (first, len): (u32, u32),
    ) -> Option<Vec<u8>> {
        let place = found.part("attribute value");
        if len > LONGEST_VALUE || first == 0 {
            let what = format!("a value of {len} bytes at block {first} of the fork is not valid");
            self.findings.add(place, Kind::Damaged { what });
            return None;
        }
        let (len, mut content) = (len as usize, Vec::new());
        let mut number = u64::from(first);
        while content.len() < len {
            let Some(block) = map.lookup(number) else {
                let what = format!("block {number} of the fork is a hole");
                self.findings.add(place, Kind::Damaged { what });
                return None;
            };
            self.part(found, &[block], (REMOTE, len), &mut content, place)?;
            number += 1;
        }
        Some(content)
    }

    /// Reads the target of a symbolic link. Returns `None` if the blocks do not contain the complete target.
    pub(super) fn remote_target(
        &mut self,
        found: &Found,
        map: &Map,
        len: usize,
    ) -> Option<Vec<u8>> {
        let (mut content, mut next) = (Vec::new(), 0);
        for piece in &map.pieces {
            if content.len() == len || piece.first != next {
                break;
            }
            next += u64::from(piece.len);
            // A target has at most 1024 bytes, and each extent has one header. Therefore the first 4 blocks of an extent suffice.
            let blocks: Vec<_> =
                (0..u64::from(piece.len.min(4))).map(|at| FsBlock(piece.start.0 + at)).collect();
            let place = found.part("symbolic link");
            self.part(found, &blocks, (SYMLINK, len), &mut content, place)?;
        }
        (content.len() == len).then_some(content)
    }

    /// Appends the content of `blocks` to `content`. The blocks have one common header.
    fn part(
        &mut self,
        found: &Found,
        blocks: &[FsBlock],
        (magic, len): (u32, usize),
        content: &mut Vec<u8>,
        place: Place,
    ) -> Option<()> {
        let place = place.block(*blocks.first()?);
        let block = self.read(place, blocks)?;
        let done = content.len();
        if !self.fs.superblock.is_v5() {
            content.extend_from_slice(&block[..block.len().min(len - done)]);
            return Some(());
        }
        let field = |at: usize| u32::from_be_bytes(array(&block, at));
        if field(0) != magic {
            let what = format!("magic {:#010x}", field(0));
            self.findings.add(place.field("magic"), Kind::Damaged { what });
            return None;
        }
        let owner = (found.number, place);
        self.fs.check_seal(&mut self.findings, &block, Header::REMOTE, blocks, owner);
        let part = (block.len() - REMOTE_HEADER).min(len - done);
        self.findings.expect(place.field("offset"), field(4), done as u64);
        self.findings.expect(place.field("bytes"), field(8), part as u64);
        content.extend_from_slice(&block[REMOTE_HEADER..REMOTE_HEADER + part]);
        Some(())
    }
}
