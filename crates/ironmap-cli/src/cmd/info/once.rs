//! A device whose metadata are read once, even if several functions need them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use ironmap::Result;
use ironmap::device::{AnyQueue, Device, InRange, Limits, QueueOptions};
use ironmap::units::DevOffset;

/// The length of a page. The device below is read in whole pages.
const PAGE: u64 = 4096;
/// The maximum number of pages in memory. If a read would exceed this number, all earlier pages are forgotten.
const PAGES: usize = 16 << 10;

/// A device over another device. It stores the pages that synchronous reads return. Queues bypass the stored pages.
pub(super) struct Once {
    below: Arc<dyn Device>,
    pages: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl Once {
    pub(super) fn over(below: Arc<dyn Device>) -> Self {
        Self { below, pages: Mutex::default() }
    }

    /// Reads the pages of a range that are not stored. Pages that follow each other are read together.
    fn fetch(&self, pages: &mut BTreeMap<u64, Vec<u8>>, first: u64, end: u64) -> Result<()> {
        if pages.len() + (end - first) as usize > PAGES {
            pages.clear();
        }
        let mut next = first;
        while next < end {
            let missing = (next..end).take_while(|page| !pages.contains_key(page)).count() as u64;
            if missing > 0 {
                let at = next * PAGE;
                let len = (missing * PAGE).min(self.below.size() - at);
                let mut bytes = vec![0; len as usize];
                self.below.read_exact_at(&mut bytes, DevOffset(at))?;
                pages.extend((next..).zip(bytes.chunks(PAGE as usize).map(<[u8]>::to_vec)));
            }
            next += missing.max(1);
        }
        Ok(())
    }
}

impl Device for Once {
    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_within(&self, buf: &mut [u8], at: DevOffset, _: InRange) -> Result<()> {
        let end = at.0 + buf.len() as u64;
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if end - at.0 > PAGES as u64 * PAGE
            || self.fetch(&mut pages, at.0 / PAGE, end.div_ceil(PAGE)).is_err()
        {
            // The pages may be unreadable because of a sector outside the requested range. So exactly the requested range is read.
            return self.below.read_exact_at(buf, at);
        }
        let mut done = 0;
        while done < buf.len() {
            let from = at.0 + done as u64;
            let rest = pages.get(&(from / PAGE)).and_then(|it| it.get((from % PAGE) as usize..));
            let rest = rest.unwrap_or_default();
            let count = rest.len().min(buf.len() - done);
            if count == 0 {
                return self.below.read_exact_at(&mut buf[done..], DevOffset(from));
            }
            buf[done..done + count].copy_from_slice(&rest[..count]);
            done += count;
        }
        Ok(())
    }

    fn queue_within(&self, options: &QueueOptions, _: InRange) -> Result<AnyQueue> {
        Ok(AnyQueue::other(self.below.queue(options)?))
    }
}
