//! Checks leaves of attributes: the entries in hash order, the names and values at the end of the block, and the space between entries and
//! names.

use zerocopy::FromBytes;

use super::super::dir::hash;
use super::super::disk::attr::{
    ALIGN, COUNTS, COUNTS_V5, LEAF, LEAF_HEADER, LEAF_HEADER_V5, LEAF_V5, RawCounts, RawEntry,
    RawLocal, RawRemote, flags,
};
use super::Checker;
use super::found::Found;
use super::hash_tree::IndexBlock;
use super::map::Map;
use crate::fs::check::{Kind, Severity};
use crate::sorting::Sorting;

/// The number of bytes of an entry with a remote value, without its name. The on-disk format counts two bytes more than the fields need.
const REMOTE_ENTRY: usize = 11;

/// The state of the check of one inode's leaves, which are checked in order.
pub(super) struct Leaves<'l> {
    found: &'l Found,
    map: &'l Map,
    /// The last hash of the entries checked so far.
    previous: u32,
    /// The names with the hash `previous`, each with its flags.
    alike: Vec<(u8, Vec<u8>)>,
}

impl<'l> Leaves<'l> {
    pub(super) fn new(found: &'l Found, map: &'l Map) -> Self {
        Self { found, map, previous: 0, alike: Vec::new() }
    }

    /// Checks the next leaf and returns its last hash.
    pub(super) fn check(&mut self, checker: &mut Checker<'_>, block: &IndexBlock) -> Option<u32> {
        let (bytes, place) = (&block.content[..], block.place);
        let is_v5 = checker.fs.superblock.is_v5();
        if block.magic != if is_v5 { LEAF_V5 } else { LEAF } {
            let what =
                format!("the magic number {:#06x} does not match an attribute leaf", block.magic);
            checker.findings.add(place.field("magic"), Kind::Damaged { what });
            return None;
        }
        let (header, at) = if is_v5 { (LEAF_HEADER_V5, COUNTS_V5) } else { (LEAF_HEADER, COUNTS) };
        let Ok((counts, _)) = RawCounts::ref_from_prefix(&bytes[at..]) else {
            return None;
        };
        let count = usize::from(counts.count.get());
        let entries = <[RawEntry]>::ref_from_prefix_with_elems(&bytes[header..], count);
        let Ok((entries, _)) = entries else {
            let what = format!("the {count} entries exceed the block");
            checker.findings.add(place.field("count"), Kind::Damaged { what });
            return None;
        };
        let table_end = header + size_of_val(entries);
        let mut used = Vec::new();
        for entry in entries {
            let hash = entry.hashval.get();
            if hash < self.previous {
                checker
                    .wrong(place.field("hashval"), format!("the hash {hash:#x} is out of order"));
            }
            if hash != self.previous {
                self.alike.clear();
            }
            self.previous = hash;
            let at = usize::from(entry.nameidx.get());
            let Some(len) = self.entry(checker, block, entry, at) else {
                let what = format!("the name at byte {at} exceeds the block");
                checker.findings.add(place.field("nameidx"), Kind::Damaged { what });
                continue;
            };
            if at < table_end || !at.is_multiple_of(ALIGN) {
                let what = format!("the name at byte {at} overlaps the entries, or is not aligned");
                checker.findings.add(place.field("nameidx"), Kind::Damaged { what });
            }
            used.push((at, at + len.next_multiple_of(ALIGN)));
        }
        self.check_room(checker, block, counts, (table_end, used));
        entries.last().map(|entry| entry.hashval.get())
    }

    /// Checks an entry. Returns the number of bytes of the name and of a local value. Returns `None` if these bytes are not within the
    /// block.
    fn entry(
        &mut self,
        checker: &mut Checker<'_>,
        block: &IndexBlock,
        entry: &RawEntry,
        at: usize,
    ) -> Option<usize> {
        let (place, bits) = (block.place, entry.flags);
        let bytes = block.content.get(at..)?;
        let known = flags::LOCAL | flags::ROOT | flags::SECURE | flags::PARENT | flags::INCOMPLETE;
        if bits & !known != 0 {
            checker.wrong(
                place.field("flags"),
                format!("the attribute has unknown flags in {bits:#x}"),
            );
        }
        if bits & flags::INCOMPLETE != 0 {
            // A crash can leave an attribute with the `INCOMPLETE` flag. Linux skips such an attribute, so the finding is only a note.
            let what = Kind::Damaged {
                what: "the attribute is incomplete, because its change was interrupted".into(),
            };
            checker.findings.add_as(Severity::Note, place.field("flags"), what);
        }
        let (name, value, len);
        if bits & flags::LOCAL != 0 {
            let (raw, rest) = RawLocal::ref_from_prefix(bytes).ok()?;
            let (names, values) = (usize::from(raw.namelen), usize::from(raw.valuelen.get()));
            let content = rest.get(..names + values)?;
            name = &content[..names];
            value = Some(content[names..].to_vec());
            len = size_of::<RawLocal>() + names + values;
        } else {
            let (raw, rest) = RawRemote::ref_from_prefix(bytes).ok()?;
            name = rest.get(..usize::from(raw.namelen))?;
            len = REMOTE_ENTRY + name.len();
            let (first, size) = (raw.valueblk.get(), raw.valuelen.get());
            value = match bits & (flags::INCOMPLETE | flags::PARENT) {
                0 => checker.remote_value(self.found, self.map, (first, size)),
                _ => None,
            };
        }
        let is_parent = Checker::is_parent(bits);
        if !is_parent {
            checker.findings.expect(place.field("hashval"), entry.hashval.get(), hash(name));
        } else if bits & flags::INCOMPLETE == 0 {
            let hash = Some(entry.hashval.get());
            checker.check_parent(self.found, place, (name, value.as_deref()), hash);
        }
        let space = bits & (flags::ROOT | flags::SECURE | flags::PARENT | flags::INCOMPLETE);
        if let Some(value) = value {
            checker.check_attribute(place, space, name, &value);
        }
        let key = (space, name.to_vec());
        if !is_parent && self.alike.contains(&key) {
            let name = name.to_vec();
            checker.findings.add(place, Kind::DuplicateName { name });
        }
        self.alike.push(key);
        Some(len)
    }

    /// Checks that names do not overlap, and that the header's fields for used and free space are correct.
    fn check_room(
        &self,
        checker: &mut Checker<'_>,
        block: &IndexBlock,
        counts: &RawCounts,
        (table_end, mut used): (usize, Vec<(usize, usize)>),
    ) {
        let (place, size) = (block.place, block.content.len());
        used.order();
        if used.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            let what = "two names overlap".into();
            checker.findings.add(place.field("nameidx"), Kind::Damaged { what });
        }
        let sum: usize = used.iter().map(|(start, end)| end - start).sum();
        checker.findings.expect(place.field("usedbytes"), counts.usedbytes.get(), sum as u64);
        // In a block of 64 KiB without names, `firstused` is 0, because 65536 does not fit into 16 bits.
        let first = match counts.firstused.get() {
            0 => 1 << 16,
            first => usize::from(first),
        };
        let lowest = used.first().map_or(size, |(start, _)| *start);
        // If there are holes between names, `firstused` may be outdated. An outdated `firstused` is lower than the first name.
        if first > lowest || first < table_end || counts.holes == 0 && first != lowest {
            let what = format!("the value is {first}, but the first name is at byte {lowest}");
            checker.wrong(place.field("firstused"), what);
        }
        for run in counts.freemap {
            let (start, len) = (usize::from(run[0].get()), usize::from(run[1].get()));
            let end = start + len;
            let overlaps = used.iter().any(|(from, to)| *from < end && start < *to);
            let aligned = start.is_multiple_of(ALIGN) && len.is_multiple_of(ALIGN);
            if end > size || !aligned || len > 0 && (start < table_end || overlaps) {
                checker.wrong(
                    place.field("freemap"),
                    format!("the {len} bytes from byte {start} on are listed as free, but are in use or not valid"),
                );
            }
        }
    }
}
