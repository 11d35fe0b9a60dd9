//! A dump of a used or unused inode: its fields, its block map and its attributes.

use std::ops::ControlFlow;

use zerocopy::FromBytes;

use super::value::{Fields, Value};
use super::{Dumper, fields};
use crate::error::{ErrorKind, Place, Result};
use crate::fs::ext4::disk::extent::{INIT_MAX_LEN, RawExtent, RawExtentHeader, RawExtentIndex};
use crate::fs::ext4::disk::inode::{RawInode, RawInodeExtra};
use crate::fs::ext4::inode::{InodePlace, inode_checksums, sectors};
use crate::fs::ext4::symlink::{SHORT_LINK, is_in_inode};
use crate::fs::ext4::tree::read_extents::node;
use crate::fs::{FileType, InodeFlags, Xattr};
use crate::units::{FsBlock, InodeNo};

const PLACE: Place = Place::new("inode");
/// The maximum number of nodes of an extent tree that a dump shows.
const NODES: usize = 1024;

impl Dumper<'_> {
    pub(super) fn inode(
        &self,
        number: InodeNo,
        xattrs: impl FnOnce() -> Result<Vec<Xattr>>,
    ) -> Result<Fields> {
        let sb = &self.superblock;
        let InodePlace { block, at, .. } = self.inode_place(number)?;
        let content = self.blocks.read(block, PLACE.inode(number))?;
        let bytes = &content[at..at + usize::from(sb.inode_size)];
        let mut record = vec![
            ("inode", number.0.into()),
            ("group", (((number.0 - 1) / u64::from(sb.inodes_per_group)) as u32).into()),
            ("block", block.0.into()),
            ("offset", (at as u64).into()),
        ];
        record.extend(self.inode_fields(number, bytes)?);
        if let Ok((raw, _)) = RawInode::ref_from_prefix(bytes) {
            record.extend(self.map_of(raw));
        }
        match xattrs() {
            Ok(xattrs) => {
                let one = |xattr: Xattr| {
                    let value = Value::Bytes(xattr.value);
                    Value::Record(vec![("name", Value::Text(xattr.name)), ("value", value)])
                };
                record.push(("xattrs", Value::List(xattrs.into_iter().map(one).collect())));
            }
            // An unused inode has no attributes to show.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => record.push(("problem", Value::text(error.to_string()))),
        }
        Ok(record)
    }

    /// The fields of an inode in the inode table. A field that is stored in two halves is added once more at the end, as one combined
    /// value.
    pub(super) fn inode_fields(&self, number: InodeNo, bytes: &[u8]) -> Result<Fields> {
        let Ok((raw, rest)) = RawInode::ref_from_prefix(bytes) else {
            return Err(PLACE.inode(number).corrupt("the structure is truncated"));
        };
        let mut record = fields::inode(raw);
        if let Ok((extra, _)) = RawInodeExtra::ref_from_prefix(rest) {
            record.extend(fields::inode_extra(extra));
        }
        let wide = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
        let size = u64::from(raw.i_size_lo.get()) | u64::from(raw.i_size_high.get()) << 32;
        let acl = u64::from(raw.i_file_acl_lo.get()) | u64::from(raw.i_file_acl_high.get()) << 32;
        let flags = InodeFlags::from_bits_retain(raw.i_flags.get());
        record.extend([
            ("size", size.into()),
            ("uid", wide(raw.i_uid.get(), raw.i_uid_high.get()).into()),
            ("gid", wide(raw.i_gid.get(), raw.i_gid_high.get()).into()),
            ("xattr_block", acl.into()),
            ("flags", Value::texts(flags.iter_names().map(|(name, _)| name.to_owned()))),
        ]);
        if let Some(seed) = self.superblock.inode_seed(number, raw.i_generation.get()) {
            let (stored, computed) = inode_checksums(seed, bytes);
            record.push(("checksum_is_right", (stored == computed).into()));
        }
        Ok(record)
    }

    /// The decoded content of `i_block`.
    fn map_of(&self, raw: &RawInode) -> Option<(&'static str, Value)> {
        let flags = InodeFlags::from_bits_retain(raw.i_flags.get());
        if flags.contains(InodeFlags::INLINE_DATA) {
            return None;
        }
        if flags.contains(InodeFlags::EXTENTS) {
            let mut left = NODES;
            return Some(("extents", self.extent_node(&raw.i_block, None, &mut left)));
        }
        let size = u64::from(raw.i_size_lo.get()) | u64::from(raw.i_size_high.get()) << 32;
        let sb = &self.superblock;
        let attributes = raw.i_file_acl_lo.get() != 0;
        let in_inode = is_in_inode(sb, size, sectors(sb, raw), attributes);
        match FileType::from_mode(raw.i_mode.get().into()) {
            Some(FileType::Symlink) if size < SHORT_LINK && in_inode => {
                let target = raw.i_block[..size as usize].to_vec();
                Some(("target", Value::Text(target)))
            }
            Some(FileType::Regular | FileType::Directory | FileType::Symlink) => {
                let (pointers, _) = raw.i_block.as_chunks::<4>();
                let pointers = pointers.iter().map(|bytes| u32::from_le_bytes(*bytes).into());
                Some(("pointers", Value::List(pointers.collect())))
            }
            _ => None,
        }
    }

    /// A node of an extent tree and the subtree below the node, with at most `left` nodes in total. The depth decreases with each level.
    /// The recursion therefore ends.
    pub(super) fn extent_node(&self, bytes: &[u8], depth: Option<u16>, left: &mut usize) -> Value {
        *left = left.saturating_sub(1);
        let Ok((header, rest)) = RawExtentHeader::ref_from_prefix(bytes) else {
            return problem("the structure is truncated");
        };
        let mut record = fields::extent_header(header);
        if let Err(error) = node(bytes, depth, Place::new("extent header")) {
            record.push(("problem", Value::text(error.to_string())));
            return Value::Record(record);
        }
        let count = usize::from(header.eh_entries.get());
        let depth = header.eh_depth.get();
        let mut entries = Vec::with_capacity(count);
        let _ = rest.chunks_exact(size_of::<RawExtent>()).take(count).try_for_each(|entry| {
            if depth > 0 && *left == 0 {
                record.push(("cut_short", true.into()));
                return ControlFlow::Break(());
            }
            entries.push(self.extent_entry(entry, depth, left));
            ControlFlow::Continue(())
        });
        record.push(("entries", Value::List(entries)));
        Value::Record(record)
    }

    fn extent_entry(&self, bytes: &[u8], depth: u16, left: &mut usize) -> Value {
        if depth == 0 {
            let Ok(raw) = RawExtent::ref_from_bytes(bytes) else {
                return problem("the extent entry is truncated");
            };
            let mut record = fields::extent(raw);
            let start = u64::from(raw.ee_start_lo.get()) | u64::from(raw.ee_start_hi.get()) << 32;
            let len = raw.ee_len.get();
            let unwritten = len > INIT_MAX_LEN;
            let blocks = if unwritten { len - INIT_MAX_LEN } else { len };
            record.extend([
                ("start", start.into()),
                ("blocks", blocks.into()),
                ("unwritten", unwritten.into()),
            ]);
            return Value::Record(record);
        }
        let Ok(raw) = RawExtentIndex::ref_from_bytes(bytes) else {
            return problem("the extent entry is truncated");
        };
        let mut record = fields::extent_index(raw);
        let child: FsBlock = raw.child();
        let below = match self.blocks.read(child, Place::new("extent header")) {
            Ok(content) => self.extent_node(&content, Some(depth - 1), left),
            Err(error) => problem(error.to_string()),
        };
        record.extend([("leaf", child.0.into()), ("node", below)]);
        Value::Record(record)
    }
}

fn problem(what: impl Into<String>) -> Value {
    Value::Record(vec![("problem", Value::text(what))])
}
