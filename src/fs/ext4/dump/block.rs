//! A dump of a block: the kind of the block, and its content. The position or the magic number of the block determines the kind.

use zerocopy::FromBytes;

use super::value::{Fields, Value};
use super::{Dumper, fields};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::ext4::dir_block::record_length;
use crate::fs::ext4::disk::dir::{
    DX_NODE_COUNT_OFFSET, DX_ROOT_COUNT_OFFSET, DX_ROOT_INFO_OFFSET, RawDirEntry, RawDxCount,
    RawDxEntry, RawDxRootInfo, TAIL_FILE_TYPE,
};
use crate::fs::ext4::disk::{extent, journal, mmp, xattr};
use crate::fs::ext4::group::Group;
use crate::units::{FsBlock, InodeNo};

const PLACE: Place = Place::new("block");

impl Dumper<'_> {
    pub(super) fn block(&self, block: FsBlock) -> Result<Fields> {
        if !self.superblock.contains(block) {
            let last = self.superblock.blocks_count - 1;
            let what = format!("block {block}: the number is outside 0 to {last}");
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        let content = self.blocks.read(block, PLACE)?;
        let (kind, decoded) = match self.by_place(block, &content)? {
            Some(found) => found,
            None => self.by_content(&content).unwrap_or(("data", Vec::new())),
        };
        let mut record = vec![("block", block.0.into()), ("kind", Value::text(kind))];
        record.extend(decoded);
        record.push(("bytes", Value::Bytes(content.to_vec())));
        Ok(record)
    }

    /// Returns the structure that a block's position determines, such as a superblock or a bitmap. Returns `None` for other blocks.
    fn by_place(&self, block: FsBlock, content: &[u8]) -> Result<Option<(&'static str, Fields)>> {
        let sb = &self.superblock;
        if let Some(at) = self.superblock_in(block) {
            return super::superblock(&content[at..], PLACE.block(block))
                .map(|fields| Some(("superblock", fields)));
        }
        if Some(block) == sb.mmp_block {
            let fields = mmp::RawMmp::ref_from_prefix(content).map(|(raw, _)| fields::mmp(raw));
            return Ok(fields.ok().map(|fields| ("mmp", fields)));
        }
        let per_block = sb.block_size.bytes() as u32 / u32::from(sb.descriptor_size);
        let first_group =
            |group: &u32| group.is_multiple_of(per_block) && self.descriptor_block(*group) == block;
        if let Some(first) = (0..sb.groups).step_by(per_block as usize).find(first_group) {
            let groups = first..(first + per_block).min(sb.groups);
            let one = |group| {
                let mut record = vec![("group", Value::from(group))];
                record.extend(self.descriptor(group, &content[self.descriptor_range(group)])?);
                Ok(Value::Record(record))
            };
            let groups = groups.map(one).collect::<Result<_>>()?;
            return Ok(Some(("group_descriptors", vec![("groups", Value::List(groups))])));
        }
        for number in 0..sb.groups {
            // A group whose descriptor cannot be read is skipped.
            let Ok(group) = self.group(number) else { continue };
            if let Some(found) = self.of_group(number, &group, block, content)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns the structure of a block if the block is a bitmap of this group or belongs to its inode table. Returns `None` for other
    /// blocks.
    fn of_group(
        &self,
        number: u32,
        group: &Group,
        block: FsBlock,
        content: &[u8],
    ) -> Result<Option<(&'static str, Fields)>> {
        let sb = &self.superblock;
        let bitmap = |kind, bits: u32| {
            let set: u32 =
                content.iter().take(bits as usize / 8).map(|byte| byte.count_ones()).sum();
            Some((
                kind,
                vec![("group", number.into()), ("bits", bits.into()), ("used", set.into())],
            ))
        };
        if block == group.block_bitmap {
            return Ok(bitmap("block_bitmap", sb.blocks_per_group / sb.cluster_blocks));
        }
        if block == group.inode_bitmap {
            return Ok(bitmap("inode_bitmap", sb.inodes_per_group));
        }
        let Some(index) = block.0.checked_sub(group.inode_table.0) else { return Ok(None) };
        if index >= sb.inode_table_blocks() {
            return Ok(None);
        }
        let (size, of_group) = (usize::from(sb.inode_size), u64::from(sb.inodes_per_group));
        let per_block = (sb.block_size.bytes() / size) as u64;
        let last = u64::from(number + 1) * of_group;
        let first = u64::from(number) * of_group + index * per_block + 1;
        let inodes = content.chunks_exact(size).zip(first..=last).map(|(bytes, inode)| {
            let mut record = vec![("inode", Value::from(inode))];
            record.extend(self.inode_fields(InodeNo(inode), bytes)?);
            Ok(Value::Record(record))
        });
        let inodes = Value::List(inodes.collect::<Result<_>>()?);
        Ok(Some(("inode_table", vec![("group", number.into()), ("inodes", inodes)])))
    }

    /// Returns the structure that a block's magic number or form determines. Returns `None` for other blocks.
    fn by_content(&self, content: &[u8]) -> Option<(&'static str, Fields)> {
        let word = u32::from_le_bytes(*content.first_chunk()?);
        if word as u16 == extent::MAGIC {
            // Only this node is shown. The lower levels of the tree are in other blocks.
            return match self.extent_leaf_of(content) {
                Value::Record(record) => Some(("extent_node", record)),
                _ => None,
            };
        }
        if word == xattr::MAGIC {
            return attributes(content).map(|record| ("xattrs", record));
        }
        if word.swap_bytes() == journal::MAGIC {
            return of_journal(content);
        }
        self.directory(content)
    }

    /// A node of an extent tree, without its children.
    fn extent_leaf_of(&self, content: &[u8]) -> Value {
        let Ok((header, rest)) = extent::RawExtentHeader::ref_from_prefix(content) else {
            return Value::List(Vec::new());
        };
        if header.eh_depth.get() == 0 {
            return self.extent_node(content, Some(0), &mut 1);
        }
        let mut record = fields::extent_header(header);
        let count = usize::from(header.eh_entries.get());
        let indexes = rest.chunks_exact(size_of::<extent::RawExtentIndex>()).take(count);
        let indexes = indexes.filter_map(|bytes| {
            let raw = extent::RawExtentIndex::ref_from_bytes(bytes).ok()?;
            let mut record = fields::extent_index(raw);
            record.push(("leaf", raw.child().0.into()));
            Some(Value::Record(record))
        });
        record.push(("entries", Value::List(indexes.collect())));
        Value::Record(record)
    }

    /// The directory entries of a block. Returns `None` if the lengths of the entries do not add up to the block size. A node of a hash
    /// tree has one unused entry that fills the block.
    fn directory(&self, content: &[u8]) -> Option<(&'static str, Fields)> {
        let size = self.superblock.block_size;
        let (mut at, mut entries, mut used) = (0, Vec::new(), false);
        while at < content.len() {
            let (raw, rest) = RawDirEntry::ref_from_prefix(&content[at..]).ok()?;
            let len = record_length(raw.rec_len.get(), size);
            let name = rest.get(..usize::from(raw.name_len))?;
            if len < size_of::<RawDirEntry>() + name.len() || !len.is_multiple_of(4) {
                return None;
            }
            let inode = raw.inode.get();
            used |= inode != 0;
            let mut record = vec![
                ("offset", Value::from(at as u64)),
                ("inode", inode.into()),
                ("rec_len", (len as u64).into()),
                ("name_len", raw.name_len.into()),
                ("file_type", raw.file_type.into()),
            ];
            let tail = inode == 0 && raw.file_type == TAIL_FILE_TYPE && len == 12;
            match rest.first_chunk::<4>() {
                Some(sum) if tail => {
                    record.push(("det_checksum", u32::from_le_bytes(*sum).into()));
                }
                _ => record.push(("name", Value::Text(name.to_vec()))),
            }
            entries.push(Value::Record(record));
            at += len;
        }
        if at != content.len() {
            return None;
        }
        let node = if used { dx_root(content) } else { dx_node(content) };
        let mut record = vec![("entries", Value::List(entries))];
        match node {
            Some(node) => record.extend(node),
            None if !used => return None,
            None => {}
        }
        Some(("directory", record))
    }
}

/// The fields in the root of a hash tree that are stored after the entries `.` and `..`.
fn dx_root(content: &[u8]) -> Option<Fields> {
    let (raw, _) = RawDxRootInfo::ref_from_prefix(content.get(DX_ROOT_INFO_OFFSET..)?).ok()?;
    if raw.reserved_zero.get() != 0 || usize::from(raw.info_length) != size_of::<RawDxRootInfo>() {
        return None;
    }
    let mut record = vec![("dx_root_info", Value::Record(fields::dx_root_info(raw)))];
    record.extend(dx_entries(content, DX_ROOT_COUNT_OFFSET)?);
    Some(record)
}

fn dx_node(content: &[u8]) -> Option<Fields> {
    dx_entries(content, DX_NODE_COUNT_OFFSET)
}

/// The capacity of a node of a hash tree, and its entries. The first entry has no hash.
fn dx_entries(content: &[u8], at: usize) -> Option<Fields> {
    let list = content.get(at..)?;
    let (raw, _) = RawDxCount::ref_from_prefix(list).ok()?;
    let (limit, count) = (raw.limit.get(), usize::from(raw.count.get()));
    let room = list.len() / size_of::<RawDxEntry>();
    if count == 0 || count > usize::from(limit) || usize::from(limit) > room {
        return None;
    }
    let entries = list.chunks_exact(size_of::<RawDxEntry>()).take(count);
    let entries = entries.filter_map(|bytes| RawDxEntry::ref_from_bytes(bytes).ok());
    let entries = entries.map(|raw| Value::Record(fields::dx_entry(raw))).collect();
    let mut record = fields::dx_count(raw);
    record.push(("dx_entries", Value::List(entries)));
    Some(record)
}

/// A block of extended attributes.
fn attributes(content: &[u8]) -> Option<Fields> {
    let (header, mut rest) = xattr::RawXattrHeader::ref_from_prefix(content).ok()?;
    let mut record = fields::xattr_header(header);
    let mut entries = Vec::new();
    // Each step removes at least the header of an entry from `rest`. The loop therefore ends.
    while rest.first_chunk::<4>().is_some_and(|word| *word != [0; 4]) {
        let Ok((raw, behind)) = xattr::RawXattrEntry::ref_from_prefix(rest) else { break };
        let len = usize::from(raw.e_name_len);
        let Some(name) = behind.get(..len) else { break };
        let mut entry = fields::xattr_entry(raw);
        entry.push(("name", Value::Text(name.to_vec())));
        if raw.e_value_inum.get() == 0 {
            let start = usize::from(raw.e_value_offs.get());
            let end = start.saturating_add(raw.e_value_size.get() as usize);
            match content.get(start..end) {
                Some(value) => entry.push(("value", Value::Bytes(value.to_vec()))),
                None => entry.push((
                    "problem",
                    Value::text("the value of the attribute is outside of the block"),
                )),
            }
        }
        entries.push(Value::Record(entry));
        rest = behind.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    record.push(("entries", Value::List(entries)));
    Some(record)
}

/// A block of the journal.
fn of_journal(content: &[u8]) -> Option<(&'static str, Fields)> {
    let (header, _) = journal::RawHeader::ref_from_prefix(content).ok()?;
    Some(match header.h_blocktype.get() {
        journal::SUPERBLOCK_V1 | journal::SUPERBLOCK_V2 => {
            let (raw, _) = journal::RawJournalSuperblock::ref_from_prefix(content).ok()?;
            ("journal_superblock", fields::journal_superblock(raw))
        }
        journal::COMMIT => {
            let (raw, _) = journal::RawCommit::ref_from_prefix(content).ok()?;
            ("journal_commit", fields::journal_commit(raw))
        }
        journal::REVOKE => {
            let (raw, _) = journal::RawRevoke::ref_from_prefix(content).ok()?;
            ("journal_revoke", fields::journal_revoke(raw))
        }
        journal::DESCRIPTOR => ("journal_descriptor", fields::journal_header(header)),
        _ => ("journal", fields::journal_header(header)),
    })
}
