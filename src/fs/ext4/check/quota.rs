//! Compares the usage of each user, group and project with the quota files.

use std::collections::{BTreeMap, HashMap, HashSet};

use zerocopy::FromBytes;

use super::Checker;
use super::found::Found;
use super::map::Data;
use crate::error::Place;
use crate::fs::InodeFlags;
use crate::fs::check::{Kind, Severity};
use crate::fs::ext4::disk::quota::{BLOCK, LEVELS, MAGICS, ROOT, RawQuotaHeader, VERSION};
use crate::fs::ext4::quota::{entries, owners};
use crate::fs::ext4::{ROOT as ROOT_INODE, RoCompat};
use crate::sorting::Sorting;
use crate::units::FsBlock;

/// The space and the number of inodes that are charged to the id of a user, group or project.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Account {
    bytes: u64,
    inodes: u64,
}

/// The usage of each id, for users, groups and projects.
#[derive(Default)]
pub(super) struct Accounts([HashMap<u32, Account>; 3]);

/// The state of a quota file's check.
struct File {
    map: Vec<Data>,
    place: Place,
    /// The blocks of the tree that were read. Each block is accepted only once. The walk therefore ends.
    seen: HashSet<u32>,
    /// The recorded usage of each id that the tree contains.
    found: HashMap<u32, Account>,
    /// `leaves` are the blocks of entries that the walk has read. `strays` are entries in these blocks that the tree does not refer to. A
    /// stray's key is its position, and its value is the id.
    leaves: HashSet<u32>,
    strays: BTreeMap<(u32, usize), u32>,
}

impl Checker<'_> {
    /// Charges an inode to its user, group and project. Three kinds of inodes are not charged: reserved inodes except the root, inodes that
    /// only the superblock names, and value inodes. A value inode is charged to the inodes that use the value.
    pub(super) fn account(&mut self, inode: &Found, blocks: u64, inodes: u64) {
        let sb = &self.fs.superblock;
        let Ok(number) = u32::try_from(inode.number.0) else { return };
        if !sb.ro_compat.contains(RoCompat::QUOTA)
            || (inode.number != ROOT_INODE && number < sb.first_inode)
            || self.is_hidden(number)
            || inode.flags().contains(InodeFlags::EA_INODE)
        {
            return;
        }
        let ids = owners(inode.raw(), inode.extra().1);
        for (accounts, id) in self.accounts.0.iter_mut().zip(ids) {
            let account = accounts.entry(id).or_default();
            account.bytes += blocks << sb.block_size.shift();
            account.inodes += inodes;
        }
    }

    pub(super) fn check_quota(&mut self) {
        if !self.fs.superblock.ro_compat.contains(RoCompat::QUOTA) {
            return;
        }
        let raw = &self.superblock;
        let files = [
            ("user quota", raw.s_usr_quota_inum.get()),
            ("group quota", raw.s_grp_quota_inum.get()),
            ("project quota", raw.s_prj_quota_inum.get()),
        ];
        for (kind, (structure, number)) in files.into_iter().enumerate() {
            if number != 0 {
                self.check_quota_file(kind, structure, number);
            }
        }
    }

    fn check_quota_file(&mut self, kind: usize, structure: &'static str, number: u32) {
        let place = Place::new(structure);
        let used = number <= self.fs.superblock.inodes_count && self.inodes.get(number).is_some();
        let inode = if used { self.inode(number) } else { None };
        let Some(inode) = inode else {
            let what = format!("inode {number} of the quota file is not in use");
            return self.findings.add(place, Kind::Damaged { what });
        };
        let place = place.inode(inode.number);
        let map = self.blocks_of(&inode, true);
        let mut file = File {
            map,
            place,
            seen: HashSet::new(),
            found: HashMap::new(),
            leaves: HashSet::new(),
            strays: BTreeMap::new(),
        };
        let header = self.quota_block(&file, 0);
        let header =
            header.as_deref().and_then(|block| RawQuotaHeader::ref_from_prefix(block).ok());
        let Some((header, _)) = header else {
            let what = "the quota file has no header".to_owned();
            return self.findings.add(place, Kind::Damaged { what });
        };
        let (magic, version) = (header.dqh_magic.get(), header.dqh_version.get());
        if !self.findings.expect(place.field("dqh_magic"), magic, MAGICS[kind])
            || !self.findings.expect(place.field("dqh_version"), version, VERSION)
        {
            return;
        }
        self.quota_tree(&mut file, ROOT, LEVELS, 0);
        for ((block, _), id) in &file.strays {
            let what = format!(
                "block {block} of the quota file has an entry of id {id} that is not reachable in the tree"
            );
            self.findings.add_as(Severity::Repairable, place, Kind::Damaged { what });
        }
        let accounts = std::mem::take(&mut self.accounts.0[kind]);
        let mut ids: Vec<u32> = accounts.keys().chain(file.found.keys()).copied().collect();
        ids.order();
        ids.dedup();
        for id in ids {
            let stored = file.found.get(&id).copied().unwrap_or_default();
            let actual = accounts.get(&id).copied().unwrap_or_default();
            if stored != actual {
                self.findings.add(
                    place,
                    Kind::Usage {
                        id,
                        bytes: (stored.bytes, actual.bytes),
                        inodes: (stored.inodes, actual.inodes),
                    },
                );
            }
        }
    }

    /// Reads the tree below a block. `levels` decreases at each step. The recursion therefore ends. `prefix` contains the upper bits of all
    /// ids in this subtree.
    fn quota_tree(&mut self, file: &mut File, block: u32, levels: u32, prefix: u32) {
        let Some(content) = self.quota_block(file, block) else {
            let what = format!("block {block} of the quota file does not exist");
            return self.findings.add(file.place, Kind::Damaged { what });
        };
        if levels == 0 {
            return file.entry(block, &content, prefix);
        }
        if !file.seen.insert(block) {
            let what = format!("block {block} of the quota file is in the tree twice");
            return self.findings.add(file.place, Kind::Damaged { what });
        }
        let (pointers, _) = content.as_chunks::<4>();
        for (byte, pointer) in (0..).zip(pointers) {
            let pointer = u32::from_le_bytes(*pointer);
            if pointer != 0 {
                self.quota_tree(file, pointer, levels - 1, prefix << 8 | byte);
            }
        }
    }

    /// Reads a block of a quota file.
    fn quota_block(&mut self, file: &File, block: u32) -> Option<Vec<u8>> {
        let size = self.fs.superblock.block_size;
        let byte = u64::from(block) * BLOCK as u64;
        let logical = byte >> size.shift();
        let data = file
            .map
            .iter()
            .find(|data| (data.first..data.first + data.count).contains(&logical))?;
        let at = FsBlock(data.start + (logical - data.first));
        let content = self.reader.block(at, file.place).ok()?;
        let offset = byte as usize % size.bytes();
        Some(content.get(offset..offset + BLOCK)?.to_vec())
    }
}

impl File {
    /// Reads the entry of an id from a block of entries. The block may also contain entries of other ids.
    fn entry(&mut self, block: u32, content: &[u8], id: u32) {
        if self.leaves.insert(block) {
            let entries = entries(content).map(|(at, entry)| ((block, at), entry.dqb_id.get()));
            self.strays.extend(entries);
        }
        if let Some((at, entry)) = entries(content).find(|(_, entry)| entry.dqb_id.get() == id) {
            let account =
                Account { bytes: entry.dqb_curspace.get(), inodes: entry.dqb_curinodes.get() };
            self.found.insert(id, account);
            self.strays.remove(&(block, at));
        }
    }
}
