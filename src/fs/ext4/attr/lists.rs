//! An inode's two lists of attributes: their form in memory during a change, and their layout on disk.

use std::ops::Sub;

use zerocopy::IntoBytes;

use super::super::disk::xattr::{MAGIC, RawXattrEntry, RawXattrHeader};
use super::super::inode::Inode;
use super::super::superblock::Superblock;
use super::name::{Name, NameIndex};
use super::read::{Entry, Value, hash_of_value};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::block::Block;
use crate::units::{FsBlock, InodeNo};

const HEADER: usize = size_of::<RawXattrHeader>();
/// The length of the magic number before the list in an inode.
const INODE_HEADER: usize = 4;
/// The length of the zeros that end a list.
const END: usize = 4;

/// The list that contains an attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Home {
    Inode,
    Block,
}

/// Both lists of an inode, and whether each list has changed.
pub(super) struct Lists<'a> {
    inode: &'a Inode,
    in_inode: Vec<Entry<'a>>,
    in_block: Vec<Entry<'a>>,
    /// Value inodes (inodes that contain one large value) in the older form. They are not charged to the owner of the attributes.
    free: Vec<InodeNo>,
    inode_changed: bool,
    block_changed: bool,
    /// The charge to the inode (in `i_blocks` and in the quota) before its attributes were changed.
    charged_before: Charged,
}

/// The charge to an inode, in `i_blocks` and in the quota, for attribute values in separate inodes.
#[derive(Clone, Copy, Default)]
pub(super) struct Charged {
    /// The number that is added to `i_blocks`.
    pub(super) blocks: i64,
    /// The number of inodes that is added to the quota usage.
    pub(super) values: i64,
}

impl Sub for Charged {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { blocks: self.blocks - other.blocks, values: self.values - other.values }
    }
}

impl<'a> Lists<'a> {
    pub(super) fn new(inode: &'a Inode, block: Option<&'a (Block, FsBlock)>) -> Result<Self> {
        let in_inode = inode.ibody().map_or(Ok(Vec::new()), |list| list.entries())?;
        let in_block = block.map_or(Ok(Vec::new()), |block| inode.block_list(block).entries())?;
        let is_free = |number: InodeNo| match inode.fs.inode(number) {
            Ok(value) => Ok(inode.is_owner_of(&value).then_some(number)),
            Err(error) if matches!(error.kind(), ErrorKind::Io(_)) => Err(error),
            // A damaged value is not an error here. It causes an error when a caller reads the value.
            Err(_) => Ok(None),
        };
        let all = values(&in_inode).chain(values(&in_block));
        let free = all.filter_map(|number| is_free(number).transpose()).collect::<Result<_>>()?;
        let mut lists = Self {
            inode,
            in_inode,
            in_block,
            free,
            inode_changed: false,
            block_changed: false,
            charged_before: Charged::default(),
        };
        lists.charged_before = lists.charged();
        Ok(lists)
    }

    fn superblock(&self) -> &'a Superblock {
        &self.inode.fs.superblock
    }

    fn list(&mut self, home: Home) -> (&mut Vec<Entry<'a>>, &mut bool) {
        match home {
            Home::Inode => (&mut self.in_inode, &mut self.inode_changed),
            Home::Block => (&mut self.in_block, &mut self.block_changed),
        }
    }

    /// Removes an attribute from its list.
    pub(super) fn take(&mut self, name: &Name<'_>) -> Option<(Entry<'a>, Home)> {
        for home in [Home::Inode, Home::Block] {
            let (list, changed) = self.list(home);
            let is = |entry: &Entry<'_>| entry.index == name.index && entry.name == name.name;
            if let Some(at) = list.iter().position(is) {
                *changed = true;
                return Some((list.remove(at), home));
            }
        }
        None
    }

    /// Selects the list that has enough space for an attribute. The inode's list is preferred, because it needs no block.
    pub(super) fn room_for(&self, entry: &Entry<'_>) -> Option<Home> {
        [Home::Inode, Home::Block].into_iter().find(|home| self.fits(entry, *home))
    }

    /// Whether an attribute fits into a list.
    pub(super) fn fits(&self, entry: &Entry<'_>, home: Home) -> bool {
        let (room, list) = match home {
            Home::Inode => (self.inode.xattr_area.len().checked_sub(INODE_HEADER), &self.in_inode),
            Home::Block => {
                (self.superblock().block_size.bytes().checked_sub(HEADER), &self.in_block)
            }
        };
        let taken: usize = list.iter().map(space).sum();
        room.is_some_and(|room| taken + space(entry) + END <= room)
    }

    /// Adds an attribute. Attributes in a block are sorted, because the kernel's search relies on the order.
    pub(super) fn insert(&mut self, entry: Entry<'a>, home: Home) {
        let (list, changed) = self.list(home);
        *changed = true;
        let at = match home {
            Home::Inode => list.len(),
            Home::Block => list.partition_point(|other| order(other) < order(&entry)),
        };
        list.insert(at, entry);
    }

    /// Removes from a list the last attribute whose value is in a separate inode. Returns the number of this inode, and what the value adds
    /// to `i_blocks` and to the quota usage.
    pub(super) fn take_large(&mut self, home: Home) -> Option<(InodeNo, Charged)> {
        let charged = self.charged();
        let (list, changed) = self.list(home);
        let at = list.iter().rposition(|entry| matches!(entry.value, Value::Inode(..)))?;
        *changed = true;
        let Value::Inode(number, _) = list.remove(at).value else { return None };
        Some((number, charged - self.charged()))
    }

    /// Empties the block's list. The caller releases the block.
    pub(super) fn clear_block(&mut self) {
        self.in_block.clear();
    }

    pub(super) fn block_changed(&self) -> bool {
        self.block_changed
    }

    pub(super) fn block_is_empty(&self) -> bool {
        self.in_block.is_empty()
    }

    /// The separate inodes of attribute values to which the list in the attribute block refers.
    pub(super) fn values_of_block(&self) -> Vec<InodeNo> {
        values(&self.in_block).collect()
    }

    /// The number of values in separate inodes.
    pub(super) fn value_inodes(&self) -> usize {
        values(&self.in_inode).chain(values(&self.in_block)).count()
    }

    /// The number of blocks and of inodes that are charged to the inode for its attribute values in separate inodes. A value that several
    /// attributes share is charged in full for each of them.
    pub(super) fn charged(&self) -> Charged {
        let sb = self.superblock();
        let mut charged = Charged::default();
        for entry in self.in_inode.iter().chain(&self.in_block) {
            if let Value::Inode(number, size) = entry.value
                && !self.free.contains(&number)
            {
                let blocks = sb.block_size.blocks_for(size as u64);
                charged.blocks += blocks.next_multiple_of(u64::from(sb.cluster_blocks)) as i64;
                charged.values += 1;
            }
        }
        charged
    }

    /// The change of the [charge](Self::charged) since the lists were read.
    pub(super) fn charge_added(&self) -> Charged {
        self.charged() - self.charged_before
    }

    /// The new content of the inode's attribute area, or `None` if the list is unchanged.
    ///
    /// # Errors
    /// `Corrupt` if the list does not fit. The values of a damaged list may overlap on the device. The new list stores each value
    /// separately and can therefore be too long.
    pub(super) fn inode_area(&self) -> Result<Option<Vec<u8>>> {
        if !self.inode_changed {
            return Ok(None);
        }
        let mut area = vec![0; self.inode.xattr_area.len()];
        // An empty list has no magic number.
        if !self.in_inode.is_empty() {
            let place = Place::new("attribute in the inode").inode(self.inode.number);
            let Some((magic, list)) = area.split_at_mut_checked(INODE_HEADER) else {
                return Err(place.corrupt("the inode is too small for the list of attributes"));
            };
            magic.copy_from_slice(&MAGIC.to_le_bytes());
            // In the inode's own list, only the entries whose value is in a separate inode have a hash. Other hashes are useful only in
            // attribute blocks, which inodes can share.
            lay_out(&self.in_inode, list, 0, |entry| match entry.value {
                Value::Here(_) => 0,
                Value::Inode(..) => entry.hash,
            })
            .map_err(|what| place.corrupt(what))?;
        }
        Ok(Some(area))
    }

    /// The new content of an attribute block, with a reference count of one. The content has no checksum yet.
    ///
    /// # Errors
    /// The errors of [`inode_area`](Self::inode_area).
    pub(super) fn block(&self) -> Result<Vec<u8>> {
        let mut block = vec![0; self.superblock().block_size.bytes()];
        let hash_of = |entry: &Entry<'_>| match entry.value {
            Value::Here(value) => hash_of_value(entry.name, value),
            Value::Inode(..) => entry.hash,
        };
        // If the hash of an entry is unknown, the block's hash cannot be computed and is set to zero.
        let hashes = self.in_block.iter().map(hash_of);
        let all = hashes.clone().fold(0_u32, |all, hash| all.rotate_left(16) ^ hash);
        let known = hashes.clone().all(|hash| hash != 0);
        let header = RawXattrHeader {
            h_magic: MAGIC.into(),
            h_refcount: 1.into(),
            h_blocks: 1.into(),
            h_hash: if known { all.into() } else { 0.into() },
            h_checksum: 0.into(),
            h_reserved: [0.into(); 3],
        };
        block[..HEADER].copy_from_slice(header.as_bytes());
        let place = Place::new("attribute block").inode(self.inode.number);
        lay_out(&self.in_block, &mut block, HEADER, hash_of).map_err(|what| place.corrupt(what))?;
        Ok(block)
    }
}

fn values<'a>(list: &'a [Entry<'_>]) -> impl Iterator<Item = InodeNo> + 'a {
    list.iter().filter_map(|entry| match entry.value {
        Value::Here(_) => None,
        Value::Inode(number, _) => Some(number),
    })
}

fn order<'a>(entry: &'a Entry<'_>) -> (NameIndex, usize, &'a [u8]) {
    (entry.index, entry.name.len(), entry.name)
}

/// The space that an attribute needs in a list: the entry with its name, and the value, each padded to a multiple of 4 bytes.
fn space(entry: &Entry<'_>) -> usize {
    let value = match entry.value {
        Value::Here(value) => value.len().next_multiple_of(4),
        Value::Inode(..) => 0,
    };
    size_of::<RawXattrEntry>() + entry.name.len().next_multiple_of(4) + value
}

/// Writes a list into `area`. The caller passes zeros from `first` on. Entries are placed from `first` towards the end of `area`, and
/// values from the end of `area` towards `first`. Value offsets count from the start of `area`.
fn lay_out(
    list: &[Entry<'_>],
    area: &mut [u8],
    first: usize,
    hash_of: impl Fn(&Entry<'_>) -> u32,
) -> Result<(), &'static str> {
    let taken: usize = list.iter().map(space).sum();
    if first + taken + END > area.len() {
        return Err("values of attributes overlap, and there is no space to store them separately");
    }
    let (mut at, mut end) = (first, area.len());
    for entry in list {
        let mut raw = RawXattrEntry {
            e_name_len: entry.name.len() as u8,
            e_name_index: entry.index.0,
            e_value_offs: 0.into(),
            e_value_inum: 0.into(),
            e_value_size: 0.into(),
            e_hash: hash_of(entry).into(),
        };
        match entry.value {
            Value::Here(b"") => {}
            Value::Here(value) => {
                end -= value.len().next_multiple_of(4);
                area[end..end + value.len()].copy_from_slice(value);
                raw.e_value_offs.set(end as u16);
                raw.e_value_size.set(value.len() as u32);
            }
            Value::Inode(number, size) => {
                raw.e_value_inum.set(number.0 as u32);
                raw.e_value_size.set(size as u32);
            }
        }
        let name = at + size_of::<RawXattrEntry>();
        area[at..name].copy_from_slice(raw.as_bytes());
        area[name..name + entry.name.len()].copy_from_slice(entry.name);
        at = name + entry.name.len().next_multiple_of(4);
    }
    Ok(())
}

/// The error for an attribute that is too large for the inode's list and for the block's list.
pub(super) fn no_room(value: usize) -> Error {
    let what = format!(
        "a value of {value} bytes fits neither into the inode nor into the attribute block"
    );
    Error::new(ErrorKind::NoSpace, what)
}
