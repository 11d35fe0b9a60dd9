//! Checks extended attributes: lists in inodes and blocks, shared blocks, and values in separate inodes.

use std::ops::Add;

use zerocopy::FromBytes;

use super::Checker;
use super::found::Found;
use crate::error::Place;
use crate::fs::InodeFlags;
use crate::fs::check::Kind;
use crate::fs::ext4::attr::read::{entry_hashes, xattr_checksum};
use crate::fs::ext4::disk::xattr::{MAGIC, RawXattrEntry, RawXattrHeader};
use crate::fs::ext4::{Compat, Incompat};
use crate::sorting::Sorting;
use crate::units::{FsBlock, InodeNo};

const HEADER: usize = size_of::<RawXattrHeader>();
const ENTRY: usize = size_of::<RawXattrEntry>();

/// A block of attributes that several inodes may share.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SharedBlock {
    /// `h_refcount`.
    stored: u32,
    /// The number of inodes that use the block.
    users: u32,
    /// The number of blocks and of inodes that are charged to each of these inodes for the large values of the attribute block.
    charged: Charged,
}

/// The charge to an inode, in `i_blocks` and in the quota, for attribute values in separate inodes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Charged {
    /// The number that is added to `i_blocks`.
    pub(super) blocks: u64,
    /// The number of inodes that is added to the quota usage. Each attribute is counted, even if several attributes share a value.
    pub(super) inodes: u64,
}

impl Add for Charged {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { blocks: self.blocks + other.blocks, inodes: self.inodes + other.inodes }
    }
}

/// A list of attributes. Entries begin at `list`; offsets of values count from the start of `values`.
struct List<'a> {
    list: &'a [u8],
    values: &'a [u8],
    /// The offset of the list in `values`.
    start: usize,
    place: Place,
    /// Whether the list is in an inode. In an inode, the hashes of entries may be 0, and names may be empty.
    unhashed: bool,
}

impl Checker<'_> {
    /// Checks all attributes of an inode. Returns the number of blocks and of inodes that are charged to the inode for values in separate
    /// inodes.
    pub(super) fn check_xattrs(&mut self, inode: &Found) -> Charged {
        let mut charged = Charged::default();
        if let Some((magic, list)) = inode.xattr_area().split_at_checked(4)
            && *magic == MAGIC.to_le_bytes()
        {
            let place = Place::new("attribute in the inode").inode(inode.number);
            let list = List { list, values: list, start: 0, place, unhashed: true };
            charged = self.check_list(inode, &list);
        }
        match inode.xattr_block(self.fs) {
            0 => charged,
            block => charged + self.check_xattr_block(inode, FsBlock(block)),
        }
    }

    fn check_xattr_block(&mut self, inode: &Found, number: FsBlock) -> Charged {
        let place = inode.place("i_file_acl");
        let cluster = Charged { blocks: self.fs.superblock.cluster_blocks.into(), inodes: 0 };
        if !self.fs.superblock.compat.contains(Compat::EXT_ATTR) {
            let (stored, rule) =
                (number.0, "the inode has an attribute block, but ext_attr is not set");
            self.findings.add(place, Kind::Invalid { stored, rule });
            return Charged::default();
        }
        if !self.usage.contains(number.0, 1) {
            self.findings.add(place, Kind::Outside { block: number.0, count: 1 });
            return Charged::default();
        }
        if let Some(shared) = self.xattr_blocks.get_mut(&number) {
            shared.users += 1;
            return cluster + shared.charged;
        }
        if !self.usage.claim(&mut self.findings, place, number.0, 1) {
            return cluster;
        }
        let place = Place::new("attribute block").inode(inode.number).block(number);
        let block = match self.reader.block(number, place) {
            Ok(block) => block,
            Err(error) => {
                self.findings.error(place, &error);
                return cluster;
            }
        };
        let Ok((header, list)) = RawXattrHeader::ref_from_prefix(&block) else { return cluster };
        let mut sound = true;
        for (field, stored, expected) in
            [("h_magic", header.h_magic.get(), MAGIC), ("h_blocks", header.h_blocks.get(), 1)]
        {
            sound &= self.findings.expect(place.field(field), stored, expected);
        }
        let mut shared =
            SharedBlock { stored: header.h_refcount.get(), users: 1, charged: Charged::default() };
        if sound {
            if let Some(seed) = self.fs.superblock.seed {
                let computed = xattr_checksum(seed, number, &block);
                let stored = header.h_checksum.get();
                self.findings.checksum(place.field("h_checksum"), stored, computed);
            }
            let list = List { list, values: &block, start: HEADER, place, unhashed: false };
            shared.charged = self.check_list(inode, &list);
        }
        self.xattr_blocks.insert(number, shared);
        cluster + shared.charged
    }

    /// Checks a list of attributes. Returns the number of blocks and of inodes that are charged for the list's values in separate inodes.
    fn check_list(&mut self, inode: &Found, list: &List<'_>) -> Charged {
        let place = list.place;
        let (mut at, mut charged) = (0, Charged::default());
        let mut values = Vec::new();
        // Each entry shortens the remaining list by at least the entry's header. The loop therefore ends.
        loop {
            let rest = list.list.get(at..).unwrap_or_default();
            match rest.first_chunk::<4>() {
                Some([0, 0, 0, 0]) => break,
                Some(_) => {}
                None => return self.bad_list(place, "the list of attributes has no end mark"),
            }
            let Ok((raw, behind)) = RawXattrEntry::ref_from_prefix(rest) else {
                return self.bad_list(place, "an entry of the list is truncated");
            };
            let name_len = usize::from(raw.e_name_len);
            // If the name index determines the complete name, as for an access control list, the stored name is empty.
            let named = list.unhashed || raw.e_name_index != 0;
            let allowed = |name: &&[u8]| named || !name.is_empty();
            let Some(name) = behind.get(..name_len).filter(allowed) else {
                return self
                    .bad_list(place.field("e_name_len"), "the attribute's name exceeds the list");
            };
            at += ENTRY + name_len.next_multiple_of(4);
            let size = raw.e_value_size.get() as usize;
            let target = raw.e_value_inum.get();
            if target != 0 {
                charged = charged + self.check_large_value(inode, raw, name, target, place);
                continue;
            }
            let offset = usize::from(raw.e_value_offs.get());
            // Only e2fsck uses the offset of an empty value. With a wrong offset, e2fsck does not find the inline data.
            let inline = inode.flags().contains(InodeFlags::INLINE_DATA);
            // A value is padded to a multiple of 4 bytes.
            let value = match size {
                0 if !inline => Some(&[][..]),
                _ => offset
                    .checked_add(size.next_multiple_of(4))
                    .and_then(|end| list.values.get(offset..end)),
            };
            let Some(value) = value.map(|words| &words[..size]) else {
                return self.bad_list(
                    place.field("e_value_offs"),
                    "the attribute's value is outside the area of values",
                );
            };
            if size > 0 {
                values.push(offset..offset + size.next_multiple_of(4));
            }
            let words = value.chunks(4).map(|chunk| {
                let mut word = [0; 4];
                word[..chunk.len()].copy_from_slice(chunk);
                u32::from_le_bytes(word)
            });
            self.check_hash(raw.e_hash.get(), entry_hashes(name, &words), list.unhashed, place);
        }
        let end = list.start + at + 4;
        values.order_by_key(|value| value.start);
        let overlap = values.windows(2).any(|pair| pair[0].end > pair[1].start);
        if overlap || values.first().is_some_and(|value| value.start < end) {
            self.bad_list(
                place.field("e_value_offs"),
                "the values overlap each other or the list of attributes",
            );
        }
        charged
    }

    fn bad_list(&mut self, place: Place, what: &str) -> Charged {
        self.findings.add(place, Kind::Damaged { what: what.to_owned() });
        Charged::default()
    }

    fn check_hash(&mut self, stored: u32, hashes: [u32; 2], unhashed: bool, place: Place) {
        if !(hashes.contains(&stored) || unhashed && stored == 0) {
            self.findings.checksum(place.field("e_hash"), stored, hashes[0]);
        }
    }

    /// Checks a value in a separate inode. Returns the number of blocks and of inodes that are charged to the inode that uses the value.
    fn check_large_value(
        &mut self,
        inode: &Found,
        raw: &RawXattrEntry,
        name: &[u8],
        target: u32,
        place: Place,
    ) -> Charged {
        let sb = &self.fs.superblock;
        let place = place.field("e_value_inum");
        let size = u64::from(raw.e_value_size.get());
        let number = InodeNo(u64::from(target));
        let valid = (sb.first_inode..=sb.inodes_count).contains(&target)
            && sb.incompat.contains(Incompat::EA_INODE);
        let value = if valid { self.inode(target) } else { None };
        let value = value.filter(|value| {
            value.flags().contains(InodeFlags::EA_INODE)
                && value.raw().i_links_count.get() != 0
                && value.size() == size
        });
        let Some(value) = value else {
            let what =
                format!("inode {number} does not contain an attribute's value of {size} bytes");
            self.findings.add(place, Kind::Damaged { what });
            return Charged { blocks: 0, inodes: 1 };
        };
        *self.value_uses.entry(target).or_default() += 1;
        // A value inode in the older form contains the inode number and the generation of its owner. It has no reference count, no hash and
        // no charge.
        let older = u64::from(value.raw().i_mtime.get()) == inode.number.0
            && value.raw().i_generation.get() == inode.raw().i_generation.get();
        if older {
            return Charged::default();
        }
        let words = std::iter::once(value.raw().i_atime.get());
        self.check_hash(raw.e_hash.get(), entry_hashes(name, &words), false, place);
        let unit = self.fs.superblock.block_size.bytes() as u64
            * u64::from(self.fs.superblock.cluster_blocks);
        let blocks = size.div_ceil(unit) * u64::from(self.fs.superblock.cluster_blocks);
        Charged { blocks, inodes: 1 }
    }

    /// Compares the reference counts of shared blocks and value inodes with the references found in all inodes.
    pub(super) fn check_shared_xattrs(&mut self) {
        let mut wrong: Vec<_> =
            self.xattr_blocks.iter().filter(|(_, shared)| shared.stored != shared.users).collect();
        wrong.order_by_key(|(number, _)| **number);
        for (number, shared) in wrong {
            let place = Place::new("attribute block").block(*number).field("h_refcount");
            self.findings.expect(place, shared.stored, shared.users);
        }
        let groups = 0..self.fs.superblock.groups;
        let values: Vec<u32> = groups
            .flat_map(|group| {
                let first = group * self.fs.superblock.inodes_per_group + 1;
                let records = self.inodes.of_group(group);
                records.filter(|(_, record)| record.is_value).map(move |(at, _)| first + at)
            })
            .collect();
        for number in values {
            self.check_value_inode(number);
        }
    }

    /// Checks the reference count of a value inode. The count is stored in fields that a value inode does not need: `i_ctime` and
    /// `i_version`.
    fn check_value_inode(&mut self, number: u32) {
        let Some(inode) = self.inode(number) else { return };
        let raw = inode.raw();
        let stored = u64::from(raw.i_ctime.get()) << 32 | u64::from(raw.i_version_lo.get());
        let uses = self.value_uses.get(&number).copied().unwrap_or_default();
        let older = raw.i_mtime.get() != 0 && uses == 1 && stored != 1;
        if !older {
            self.findings.expect(inode.place("reference count"), stored, uses);
        }
    }
}
