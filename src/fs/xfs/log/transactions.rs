//! Assembles transactions from the operations in records: an item may begin in one record and end in the next.

use std::collections::BTreeMap;

use zerocopy::FromBytes;

use super::record::Record;
use crate::error::{Place, Result};
use crate::fs::xfs::disk::log::{RawOperation, TRANSACTION_HEADER, TRANSACTION_MAGIC, operation};
use crate::fs::xfs::header::array;

/// The maximum number of regions of a log item. A buffer item has one region for each run of set bits in its map.
const MAX_REGIONS: u16 = 1 << 12;

/// A log item: a list of regions. The first region begins with the type of the item.
#[derive(Default)]
pub(super) struct Item {
    total: u16,
    pub(super) regions: Vec<Vec<u8>>,
}

impl Item {
    pub(super) fn code(&self) -> u16 {
        self.regions.first().map_or(0, |region| u16::from_le_bytes(array(region, 0)))
    }

    pub(super) fn region(&self, number: usize, place: Place) -> Result<&[u8]> {
        let region = self.regions.get(number).map(|region| &region[..]);
        region.ok_or_else(|| place.corrupt(format!("the log item has no region {number}")))
    }
}

/// A committed transaction.
pub(super) struct Transaction {
    /// The log position (LSN) of the transaction's first record.
    pub(super) lsn: u64,
    pub(super) items: Vec<Item>,
    /// The transaction's last record, for error messages.
    pub(super) place: Place,
}

#[derive(Default)]
struct Open {
    lsn: u64,
    header: Vec<u8>,
    items: Vec<Item>,
}

/// Transactions that have begun and are not committed yet, by transaction number.
#[derive(Default)]
pub(super) struct Transactions(BTreeMap<u32, Open>);

impl Transactions {
    /// Processes the operations of a record. Calls `commit` with each transaction whose commit operation is in the record.
    pub(super) fn record(
        &mut self,
        record: &Record,
        mut commit: impl FnMut(Transaction) -> Result<()>,
    ) -> Result<()> {
        let (mut rest, place) = (&record.data[..], record.place);
        for _ in 0..record.operations {
            let Ok((raw, after)) = RawOperation::ref_from_prefix(rest) else {
                return Err(place
                    .field("h_num_logops")
                    .corrupt("a log operation exceeds the record"));
            };
            let Some((content, after)) = after.split_at_checked(raw.oh_len.get() as usize) else {
                let what = format!("a log operation of {} bytes exceeds the record", raw.oh_len);
                return Err(place.field("oh_len").corrupt(what));
            };
            rest = after;
            let (number, flags) = (raw.oh_tid.get(), raw.oh_flags & !operation::END);
            if flags & operation::START != 0 {
                self.0.insert(number, Open { lsn: record.lsn, ..Open::default() });
                continue;
            }
            // A transaction without a start operation began before the tail of the log. All its changes were already written to their final
            // positions.
            let Some(open) = self.0.get_mut(&number) else { continue };
            if flags & operation::UNMOUNT != 0 {
                self.0.remove(&number);
            } else if flags & operation::COMMIT != 0 {
                let Some(open) = self.0.remove(&number) else { continue };
                commit(Transaction { lsn: open.lsn, items: open.items, place })?;
            } else if flags & operation::WAS_CONTINUED != 0 {
                open.go_on(content, place)?;
            } else {
                open.add(content, place)?;
            }
        }
        Ok(())
    }
}

impl Open {
    /// Adds a region.
    fn add(&mut self, content: &[u8], place: Place) -> Result<()> {
        if content.is_empty() {
            return Ok(());
        }
        if self.header.len() < TRANSACTION_HEADER {
            return self.add_to_header(content, place);
        }
        let is_full =
            |item: &Item| item.total != 0 && usize::from(item.total) == item.regions.len();
        if self.items.last().is_none_or(is_full) {
            let total = u16::from_le_bytes(array(content, 2));
            if total == 0 || total > MAX_REGIONS || content.len() < 4 {
                return Err(place
                    .field("size")
                    .corrupt(format!("a log item cannot have {total} regions")));
            }
            self.items.push(Item { total, regions: Vec::new() });
        }
        if let Some(item) = self.items.last_mut() {
            item.regions.push(content.to_vec());
        }
        Ok(())
    }

    /// Adds the remaining bytes of a region that began in the previous record.
    fn go_on(&mut self, content: &[u8], place: Place) -> Result<()> {
        match self.items.last_mut().and_then(|item| item.regions.last_mut()) {
            Some(region) => region.extend_from_slice(content),
            None => self.add_to_header(content, place)?,
        }
        Ok(())
    }

    fn add_to_header(&mut self, content: &[u8], place: Place) -> Result<()> {
        self.header.extend_from_slice(content);
        if self.header.len() > TRANSACTION_HEADER {
            return Err(place
                .field("th_magic")
                .corrupt("the header of the transaction is too long"));
        }
        let magic = u32::from_le_bytes(array(&self.header, 0));
        if self.header.len() >= 4 && magic != TRANSACTION_MAGIC {
            return Err(place.field("th_magic").corrupt(format!("{magic:#010x}")));
        }
        Ok(())
    }
}
