//! A device that stores a tag (checksum) for every sector. For a request, the device computes the tags from the memory. A moment later it
//! compares the memory with these tags.

use std::collections::HashMap;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ironmap::Errno;
use ironmap::device::{Device, Layer, Layered, Limits, Request, Verdict};
use ironmap::units::DevOffset;

use crate::stable::scribbler::Rounds;

const SECTOR: usize = 512;

/// The tags (checksums) of the sectors, and the counters of the device.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    tags: Mutex<HashMap<u64, u64>>,
    /// Counts the rounds of the threads that overwrite memory. While these threads run, each request stays in flight until all of its
    /// memory has been overwritten.
    pub(crate) rounds: Rounds,
    /// The number of reads whose memory did not match the tags (checksums) of the sectors.
    pub(crate) mismatches: AtomicU64,
}

/// The device layer that compares the memory of requests with the tags (checksums) of sectors.
#[derive(Debug)]
pub(crate) struct Checking(Arc<Checks>);

/// Makes a device that checks tags (checksums) of sectors. The content of the device below must be correct before the call.
pub(crate) fn checking(below: Arc<dyn Device>) -> (Arc<Layered<Checking>>, Arc<Checks>) {
    let checks = Arc::new(Checks::default());
    for_each_part(&*below, |at, part| checks.learn(at, &[IoSlice::new(part)]));
    (Arc::new(Layered::with_layer(below, Checking(Arc::clone(&checks)))), checks)
}

fn tags(at: DevOffset, bufs: &[IoSlice<'_>]) -> Vec<(u64, u64)> {
    let sectors = bufs.iter().flat_map(|buf| buf.chunks_exact(SECTOR));
    let tag = |sector: &[u8]| {
        sector.chunks_exact(8).fold(0xcbf2_9ce4_8422_2325, |tag: u64, word| {
            let word = u64::from_le_bytes(word.try_into().unwrap());
            (tag ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
        })
    };
    sectors.enumerate().map(|(index, it)| (at.0 / SECTOR as u64 + index as u64, tag(it))).collect()
}

impl Checks {
    fn learn(&self, at: DevOffset, bufs: &[IoSlice<'_>]) {
        self.tags.lock().unwrap().extend(tags(at, bufs));
    }

    /// The number of sectors on the device `below` that do not match their tags (checksums).
    pub(crate) fn bad_tags(&self, below: &dyn Device) -> usize {
        let mut bad = 0;
        for_each_part(below, |at, part| {
            let known = self.tags.lock().unwrap();
            let is_bad = |(sector, tag): &(u64, u64)| known.get(sector) != Some(tag);
            bad += tags(at, &[IoSlice::new(part)]).iter().filter(|it| is_bad(it)).count();
        });
        bad
    }
}

/// Calls `work` with each part of the device, in order.
fn for_each_part(device: &dyn Device, mut work: impl FnMut(DevOffset, &[u8])) {
    let mut content = vec![0; 1 << 20];
    for at in (0..device.size()).step_by(content.len()) {
        let part = &mut content[..(device.size() - at).min(1 << 20) as usize];
        device.read_exact_at(part, DevOffset(at)).unwrap();
        work(DevOffset(at), part);
    }
}

impl Layer for Checking {
    fn limits(&self, below: &Limits) -> Limits {
        Limits { logical_block: below.logical_block.max(512), stable_writes: true, ..*below }
    }

    fn begin(&self, request: &Request<'_>) -> Verdict {
        if let Request::Write { at, bufs, .. } = request {
            self.0.learn(*at, bufs);
            self.0.rounds.pass();
        }
        Verdict::pass(request)
    }

    fn verify(&self, at: DevOffset, bufs: &[IoSlice<'_>]) -> Result<(), Errno> {
        self.0.rounds.pass();
        let found = tags(at, bufs);
        let known = self.0.tags.lock().unwrap();
        if found.iter().all(|(sector, tag)| known.get(sector) == Some(tag)) {
            return Ok(());
        }
        self.0.mismatches.fetch_add(1, Ordering::Relaxed);
        Err(Errno::EILSEQ)
    }
}
