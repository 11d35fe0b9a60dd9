//! Checks the inodes of all chunks: their fields, maps and attributes, and the blocks that they use.

use super::super::disk::inode::{flags2, format};
use super::super::disk::tree::{NONE, owner_bits};
use super::Checker;
use super::found::Found;
use super::map::{Map, Which};
use super::owners::Space;
use super::table::{CHUNK, Directory, State};
use crate::fs::FileType;
use crate::fs::check::{Kind, Pass};
use crate::units::{FsBlock, InodeNo};

/// The maximum length of a symbolic link's target.
const LONGEST_TARGET: usize = 1024;
/// The number of chunks whose inodes are read together: with inodes of 512 bytes, 2 MiB.
const TOGETHER: usize = 64;

impl Checker<'_> {
    pub(super) fn check_inodes(&mut self) {
        let geometry = self.fs.superblock.geometry;
        for at in 0..self.inodes.chunks.len() {
            let group = self.inodes.chunks[at].group;
            self.tell(Pass::Inodes, group.into(), geometry.groups.into());
            if at.is_multiple_of(TOGETHER) {
                self.announce_chunks(at);
            }
            for index in 0..CHUNK {
                let chunk = &self.inodes.chunks[at];
                if !chunk.exists(index) {
                    continue;
                }
                let (number, free) = (InodeNo(chunk.first + index), chunk.is_free(index));
                let place = chunk.place(&geometry, index);
                let state = self.check_inode(number, place, free);
                self.inodes.chunks[at].states[index as usize] = state;
            }
        }
    }

    /// Reads the inode blocks of the next chunks ahead.
    fn announce_chunks(&mut self, first: usize) {
        let geometry = &self.fs.superblock.geometry;
        let chunks = self.inodes.chunks[first..].iter().take(TOGETHER);
        let runs = chunks.map(|chunk| geometry.inode_run(chunk.place(geometry, 0).0));
        self.fs.metadata.announce(&mut self.queue, runs);
    }

    fn check_inode(&mut self, number: InodeNo, at: (FsBlock, usize), free: bool) -> State {
        let Some(found) = self.fs.find_inode(&mut self.findings, number, at) else {
            return State::default();
        };
        self.check_any(&found);
        let place = found.place("di_mode");
        match (found.mode() == 0, free) {
            (true, true) => {
                self.check_free(&found);
                let has_next = found.raw.di_next_unlinked.get() != NONE;
                return State { has_next, ..State::default() };
            }
            (true, false) => {
                self.findings.add(place, Kind::MarkedUsed { first: number.0, count: 1 });
                return State::default();
            }
            (false, true) => {
                self.findings.add(place, Kind::MarkedFree { first: number.0, count: 1 });
            }
            (false, false) => {}
        }
        self.pointers = 0;
        let mut state = State {
            file_type: found.file_type(),
            used: true,
            shares: found.flags2() & flags2::REFLINK != 0,
            links: found.links(),
            metadata: found.is_metadata(),
            has_next: found.raw.di_next_unlinked.get() != NONE,
            ..State::default()
        };
        if self.check_core(&found) {
            self.check_forks(&found);
        }
        state.parents = 0_u64.wrapping_sub(self.pointers);
        if state.file_type == Some(FileType::Directory) {
            let (dot_dot, parent) = (InodeNo(0), InodeNo(0));
            self.directories.push(Directory { number, dot_dot, parent, children: 0 });
        }
        state
    }

    fn check_forks(&mut self, found: &Found) {
        let data = self.fs.check_map(&mut self.findings, found, Which::Data);
        let attributes = match found.attributes() {
            Some(_) => self.fs.check_map(&mut self.findings, found, Which::Attributes),
            None => Map { whole: true, ..Map::default() },
        };
        self.claim_map(found, &data, 0);
        self.claim_map(found, &attributes, owner_bits::ATTRIBUTES);
        let in_trees = self.check_space_file(found);
        let of_maps = [&data, &attributes].map(|map| map.blocks() + map.tree.len() as u64);
        let blocks = of_maps.iter().sum::<u64>() + in_trees;
        if data.whole && attributes.whole {
            self.findings.expect(found.place("di_nblocks"), found.raw.di_nblocks.get(), blocks);
        }
        let realtime = if data.elsewhere { data.blocks() } else { 0 };
        self.accounts.add(&self.fs.superblock, found, realtime);
        if found.file_type() == Some(FileType::Symlink) {
            self.check_symlink(found, &data);
        }
        if found.file_type() != Some(FileType::Regular)
            && data.pieces.iter().any(|piece| piece.unwritten)
        {
            self.wrong(
                found.place("extent"),
                "a directory or symbolic link has an unwritten extent",
            );
        }
        if found.attributes().is_some() {
            self.check_attributes(found, &attributes);
        }
        self.change_parents(found);
    }

    fn claim_map(&mut self, found: &Found, map: &Map, bits: u64) {
        let geometry = self.fs.superblock.geometry;
        for piece in &map.pieces {
            let unwritten = if piece.unwritten { owner_bits::UNWRITTEN } else { 0 };
            let offset = piece.first & owner_bits::OFFSET | bits | unwritten;
            let place = if map.elsewhere {
                self.realtime_group(piece.start.0, piece.len)
            } else {
                let (group, start) = geometry.in_group(piece.start);
                Some((Space::Data(group), start))
            };
            if let Some((space, start)) = place {
                self.claim(space, (start, piece.len), found.number.0, offset);
            }
        }
        for block in &map.tree {
            let (group, start) = geometry.in_group(*block);
            let offset = bits | owner_bits::MAP_BLOCK;
            self.claim(Space::Data(group), (start, 1), found.number.0, offset);
        }
    }

    fn check_symlink(&mut self, found: &Found, data: &Map) {
        let place = found.part("symbolic link");
        let len = found.size() as usize;
        if len == 0 || len > LONGEST_TARGET {
            return;
        }
        let target = match found.raw.di_format {
            format::LOCAL => found.data().get(..len).map(<[u8]>::to_vec),
            _ => self.remote_target(found, data, len),
        };
        match target {
            Some(target) if target.contains(&0) => {
                self.wrong(place, "the target of the symbolic link contains a NUL");
            }
            Some(_) => {}
            None => {
                let what = format!("the blocks do not contain the target's {len} bytes");
                self.findings.add(place, Kind::Damaged { what });
            }
        }
    }
}
