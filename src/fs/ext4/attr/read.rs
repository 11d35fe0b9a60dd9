//! Extended attributes. An inode has a list of attributes in the inode and a list in a separate block. A value is stored in the list or in
//! a separate inode.

use zerocopy::FromBytes;

use super::acl;
use super::name::{MAX_FULL_NAME, NameIndex};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::block::Block;
use crate::fs::ext4::checksum::{MetadataSeed, crc32c_raw};
use crate::fs::ext4::disk::xattr::{CHECKSUM_OFFSET, MAGIC, RawXattrEntry, RawXattrHeader};
use crate::fs::ext4::features::Incompat;
use crate::fs::ext4::inode::Inode;
use crate::fs::ext4::superblock::Superblock;
use crate::fs::{FileType, InodeFlags, Xattr};
use crate::units::{BlockSize, FileBlock, FsBlock, InodeNo};

/// The maximum length of a value in Linux's system calls. ironmap also refuses larger values.
pub(in crate::fs::ext4) const MAX_VALUE: usize = 64 << 10;
/// The maximum total length of an inode's values in bytes. The values of a damaged list may overlap or share an inode, and exceed the size
/// of the volume.
const MAX_VALUES: usize = 16 << 20;

/// An entry of a list.
pub(in crate::fs::ext4) struct Entry<'a> {
    pub(in crate::fs::ext4) index: NameIndex,
    pub(in crate::fs::ext4) name: &'a [u8],
    pub(in crate::fs::ext4) value: Value<'a>,
    /// `e_hash`; 0 if the entry has no hash.
    pub(in crate::fs::ext4) hash: u32,
}

#[derive(Clone, Copy)]
pub(in crate::fs::ext4) enum Value<'a> {
    Here(&'a [u8]),
    /// The number of the separate inode that contains the value, and the value's length.
    Inode(InodeNo, usize),
}

impl Entry<'_> {
    fn full_name(&self) -> Option<Vec<u8>> {
        if self.is_inline_data() {
            return None;
        }
        let prefix = self.index.prefix()?.as_bytes();
        Some([prefix, self.name].concat())
    }

    /// Whether this is `system.data`, which contains inline data.
    pub(in crate::fs::ext4) fn is_inline_data(&self) -> bool {
        self.index == NameIndex::SYSTEM && self.name == b"data"
    }
}

/// A list of attributes. `list` begins with the first entry. Offsets of values count from the start of `values`.
pub(in crate::fs::ext4) struct List<'a> {
    list: &'a [u8],
    values: &'a [u8],
    pub(in crate::fs::ext4) place: Place,
}

impl<'a> List<'a> {
    /// All entries, with checked value ranges.
    pub(in crate::fs::ext4) fn entries(&self) -> Result<Vec<Entry<'a>>> {
        let place = self.place;
        let mut entries = Vec::new();
        let mut rest = self.list;
        // Each entry shortens the remaining list by at least the entry's header. The loop therefore ends.
        loop {
            match rest.first_chunk::<4>() {
                Some([0, 0, 0, 0]) => return Ok(entries),
                Some(_) => {}
                None => return Err(place.corrupt("the list of attributes has no end mark")),
            }
            let Ok((raw, behind)) = RawXattrEntry::ref_from_prefix(rest) else {
                return Err(place.corrupt("an entry of the list is truncated"));
            };
            let name_len = usize::from(raw.e_name_len);
            let Some(name) = behind.get(..name_len) else {
                return Err(place.field("e_name_len").corrupt(format!("{name_len} bytes")));
            };
            rest = behind.get(name_len.next_multiple_of(4)..).unwrap_or_default();
            let size = raw.e_value_size.get() as usize;
            let value = match raw.e_value_inum.get() {
                // The offset of an empty value has no meaning.
                0 if size == 0 => Value::Here(&[]),
                0 => {
                    let offset = usize::from(raw.e_value_offs.get());
                    let end = offset.checked_add(size);
                    let Some(value) = end.and_then(|end| self.values.get(offset..end)) else {
                        let what = format!("{offset}+{size} of {}", self.values.len());
                        return Err(place.field("e_value_offs").corrupt(what));
                    };
                    Value::Here(value)
                }
                inode => Value::Inode(InodeNo(u64::from(inode)), size),
            };
            let (index, hash) = (NameIndex(raw.e_name_index), raw.e_hash.get());
            entries.push(Entry { index, name, value, hash });
        }
    }
}

impl Inode {
    /// The extended attributes in on-disk order, with the names and values that the system calls return.
    ///
    /// # Errors
    /// `Corrupt` for damaged attributes; `LimitExceeded` for a value above 64 KiB, which Linux's system calls also refuse, and for values
    /// above 16 MiB in total.
    pub fn xattrs(&self) -> Result<Vec<Xattr>> {
        self.read_current(Self::all_xattrs)
    }

    fn all_xattrs(&self) -> Result<Vec<Xattr>> {
        let (mut all, mut total) = (Vec::new(), 0);
        let block = self.read_xattr_block()?;
        for list in self.lists(block.as_ref()) {
            for entry in list.entries()? {
                if let Some(name) = entry.full_name() {
                    let value = self.value(&entry, list.place)?;
                    total += value.len();
                    if total > MAX_VALUES {
                        let what = format!(
                            "the values of all attributes have more than {MAX_VALUES} bytes"
                        );
                        return Err(Error::new(ErrorKind::LimitExceeded, what));
                    }
                    all.push(Xattr { name, value });
                }
            }
        }
        Ok(all)
    }

    /// The value of one attribute; `None` if no attribute has this name.
    ///
    /// # Errors
    /// The errors of [`Inode::xattrs`], but only for this value; `NameTooLong`.
    pub fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if name.len() > MAX_FULL_NAME {
            let len = name.len();
            return Err(Error::new(
                ErrorKind::NameTooLong,
                format!("an attribute's name of {len} bytes is too long"),
            ));
        }
        self.read_current(|inode| inode.find_xattr(name))
    }

    fn find_xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let block = self.read_xattr_block()?;
        for list in self.lists(block.as_ref()) {
            for entry in list.entries()? {
                if entry.full_name().is_some_and(|full| full == name) {
                    return self.value(&entry, list.place).map(Some);
                }
            }
        }
        Ok(None)
    }

    /// The value of the encryption context attribute, which no system call shows.
    pub(in crate::fs::ext4) fn encryption_context(&self) -> Result<Option<Vec<u8>>> {
        let block = self.read_xattr_block()?;
        for list in self.lists(block.as_ref()) {
            for entry in list.entries()? {
                if entry.index == NameIndex::ENCRYPTION && entry.name == b"c" {
                    return self.value(&entry, list.place).map(Some);
                }
            }
        }
        Ok(None)
    }

    /// The part of inline data that is not in `i_block`.
    pub(in crate::fs::ext4) fn inline_rest(&self) -> Result<&[u8]> {
        self.inline_attribute().map(Option::unwrap_or_default)
    }

    /// The value of `system.data`.
    pub(in crate::fs::ext4) fn inline_attribute(&self) -> Result<Option<&[u8]>> {
        let Some(list) = self.ibody() else { return Ok(None) };
        let entry = list.entries()?.into_iter().find(Entry::is_inline_data);
        match entry.map(|entry| entry.value) {
            None => Ok(None),
            Some(Value::Here(bytes)) => Ok(Some(bytes)),
            Some(Value::Inode(..)) => Err(list
                .place
                .field("e_value_inum")
                .corrupt("the inline data (system.data) is stored in another inode")),
        }
    }

    /// The list in the inode; `None` if the inode has no list.
    pub(in crate::fs::ext4) fn ibody(&self) -> Option<List<'_>> {
        let (magic, list) = self.xattr_area.split_at_checked(4)?;
        let place = Place::new("attribute in the inode").inode(self.number);
        (*magic == MAGIC.to_le_bytes()).then_some(List { list, values: list, place })
    }

    /// Reads the attribute block and checks it.
    pub(in crate::fs::ext4) fn read_xattr_block(&self) -> Result<Option<(Block, FsBlock)>> {
        let Some(number) = self.xattr_block else { return Ok(None) };
        let place = Place::new("attribute block").inode(self.number);
        let block = self.fs.blocks.read(number, place.field("i_file_acl"))?;
        let place = place.block(number);
        let Ok((header, _)) = RawXattrHeader::ref_from_prefix(&block) else {
            return Err(place.corrupt("the attribute block is truncated"));
        };
        let (magic, blocks) = (header.h_magic.get(), header.h_blocks.get());
        if magic != MAGIC {
            let what = format!("the magic number is {magic:#010x} instead of {MAGIC:#010x}");
            return Err(place.field("h_magic").corrupt(what));
        }
        if blocks != 1 {
            return Err(place
                .field("h_blocks")
                .corrupt(format!("the number of blocks is {blocks} instead of 1")));
        }
        if let Some(seed) = self.fs.superblock.seed {
            let computed = xattr_checksum(seed, number, &block);
            let stored = header.h_checksum.get();
            if stored != computed {
                return Err(place.field("h_checksum").bad_checksum(stored, computed));
            }
        }
        Ok(Some((block, number)))
    }

    /// The list in an attribute block.
    pub(in crate::fs::ext4) fn block_list<'a>(&self, block: &'a (Block, FsBlock)) -> List<'a> {
        let (bytes, number) = block;
        let place = Place::new("attribute").inode(self.number).block(*number);
        List { list: &bytes[size_of::<RawXattrHeader>()..], values: bytes, place }
    }

    /// The two attribute lists: first the inode's own list, then the list in the attribute block.
    fn lists<'a>(&'a self, block: Option<&'a (Block, FsBlock)>) -> impl Iterator<Item = List<'a>> {
        self.ibody().into_iter().chain(block.map(|block| self.block_list(block)))
    }

    /// An attribute's value in the form of the system calls. If the entry has a hash, the hash is verified.
    fn value(&self, entry: &Entry<'_>, place: Place) -> Result<Vec<u8>> {
        let value = match entry.value {
            Value::Here(value) => {
                verify_hash(entry, &words(value), place)?;
                value.to_vec()
            }
            Value::Inode(number, size) => self.value_of_inode(entry, number, size, place)?,
        };
        match entry.index {
            NameIndex::ACL_ACCESS | NameIndex::ACL_DEFAULT => acl::to_syscall_format(&value, place),
            _ => Ok(value),
        }
    }

    /// Reads a large value from its separate inode.
    fn value_of_inode(
        &self,
        entry: &Entry<'_>,
        number: InodeNo,
        size: usize,
        place: Place,
    ) -> Result<Vec<u8>> {
        let place = place.field("e_value_inum");
        if !self.fs.superblock.incompat.contains(Incompat::EA_INODE) {
            return Err(place.corrupt(
                "the value is stored in an inode, although the feature ea_inode is not set",
            ));
        }
        if size > MAX_VALUE {
            let what = format!("the attribute's value has {size} bytes; the limit is {MAX_VALUE}");
            return Err(Error::new(ErrorKind::LimitExceeded, what));
        }
        let inode = self.fs.inode(number).map_err(|error| match error.kind() {
            ErrorKind::NotFound => place
                .corrupt(format!("the field refers to inode {number}, which is not in use"))
                .source(error),
            _ => error,
        })?;
        if !inode.flags.contains(InodeFlags::EA_INODE)
            || inode.has_inline_data()
            || inode.file_type != FileType::Regular
            || inode.size != size as u64
        {
            return Err(place.corrupt(format!(
                "inode {number} does not contain an attribute's value of {size} bytes"
            )));
        }
        let value = inode.read_value(size, self.fs.superblock.block_size)?;
        if self.is_owner_of(&inode) {
            return Ok(value);
        }
        let computed = value_checksum(&self.fs.superblock, &value);
        if inode.raw_atime != computed {
            let place = Place::new("attribute's value").inode(number).field("i_atime");
            return Err(place.bad_checksum(inode.raw_atime, computed));
        }
        verify_hash(entry, &std::iter::once(computed), place)?;
        Ok(value)
    }

    /// Whether a value inode (an inode that contains one large value) has the older form and belongs to this inode. In the older form, a
    /// value inode has no hash. Instead of a reference count, it contains the owner's inode number and generation.
    pub(in crate::fs::ext4) fn is_owner_of(&self, value: &Self) -> bool {
        let owner = u64::from(value.stat().modified.seconds as u32);
        owner == self.number.0 && value.generation == self.generation
    }

    /// Reads the content of an inode that contains one large attribute value. The blocks of this inode are metadata.
    fn read_value(&self, size: usize, block_size: BlockSize) -> Result<Vec<u8>> {
        let place = Place::new("attribute's value").inode(self.number);
        let mut value = Vec::with_capacity(size);
        for block in 0..block_size.blocks_for(size as u64) {
            let Some(at) = self.fs_block(FileBlock(block))? else {
                return Err(place.corrupt(format!("block {block} of the value is a hole")));
            };
            let content = self.fs.blocks.read(at, place)?;
            let count = content.len().min(size - value.len());
            value.extend_from_slice(&content[..count]);
        }
        Ok(value)
    }
}

/// The checksum of a value in a separate inode. It is stored even on volumes without metadata checksums.
pub(in crate::fs::ext4) fn value_checksum(sb: &Superblock, value: &[u8]) -> u32 {
    let seed = sb.seed.map_or_else(|| crc32c_raw(!0, &sb.uuid), |seed| seed.0);
    crc32c_raw(seed, value)
}

/// The words over which a value's hash is computed.
fn words(value: &[u8]) -> impl Iterator<Item = u32> + Clone {
    value.chunks(4).map(|chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        u32::from_le_bytes(word)
    })
}

/// `e_hash` of an attribute whose value is in the list.
pub(in crate::fs::ext4) fn hash_of_value(name: &[u8], value: &[u8]) -> u32 {
    hash(name, words(value), u32::from)
}

/// `e_hash` of an attribute whose value is in a separate inode. `checksum` is the checksum of the value.
pub(in crate::fs::ext4) fn hash_of_checksum(name: &[u8], checksum: u32) -> u32 {
    hash(name, std::iter::once(checksum), u32::from)
}

fn hash(name: &[u8], value: impl Iterator<Item = u32>, widen: fn(u8) -> u32) -> u32 {
    let name = name.iter().fold(0_u32, |hash, byte| hash.rotate_left(5) ^ widen(*byte));
    value.fold(name, |hash, word| hash.rotate_left(16) ^ word)
}

/// The two possible values of `e_hash` for a name and the words of its value. The first value treats the bytes of the name as unsigned, the
/// second value treats them as signed.
pub(in crate::fs::ext4) fn entry_hashes(
    name: &[u8],
    value: &(impl Iterator<Item = u32> + Clone),
) -> [u32; 2] {
    [u32::from, |byte| byte as i8 as u32].map(|widen| hash(name, value.clone(), widen))
}

/// Verifies `e_hash` against the name and the words of the value. If `e_hash` is 0, there is no hash to verify.
///
/// Some versions of Linux treat the bytes of the name as signed, others as unsigned. A volume may contain hashes of both kinds.
fn verify_hash(
    entry: &Entry<'_>,
    value: &(impl Iterator<Item = u32> + Clone),
    place: Place,
) -> Result<()> {
    let hashes = entry_hashes(entry.name, value);
    if entry.hash == 0 || hashes.contains(&entry.hash) {
        Ok(())
    } else {
        Err(place.field("e_hash").bad_checksum(entry.hash, hashes[0]))
    }
}

/// The checksum of an attribute block. It covers the block's number and its content, with the checksum field set to 0.
pub(in crate::fs::ext4) fn xattr_checksum(
    seed: MetadataSeed,
    number: FsBlock,
    block: &[u8],
) -> u32 {
    let mut sum = crc32c_raw(seed.0, &number.0.to_le_bytes());
    sum = crc32c_raw(sum, &block[..CHECKSUM_OFFSET]);
    sum = crc32c_raw(sum, &[0; 4]);
    crc32c_raw(sum, &block[CHECKSUM_OFFSET + 4..])
}

/// Stores the checksum of an attribute block.
pub(crate) fn seal_xattr_block(seed: Option<MetadataSeed>, number: FsBlock, block: &mut [u8]) {
    if let Some(seed) = seed {
        let sum = xattr_checksum(seed, number, block);
        block[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 4].copy_from_slice(&sum.to_le_bytes());
    }
}
