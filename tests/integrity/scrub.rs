//! What a scrub finds, and what it must not: lost writes of tags that are still in memory, and no lost writes where there were none.

use std::sync::Arc;
use std::time::Duration;

use ironmap::device::{Device, Faults, Sim};
use ironmap::integrity::{Finding, FormatOptions, Integrity, IntegrityOptions};
use ironmap::{Errno, Error};

use crate::stand::{Stand, as_device, change, read, write};

const SIZE: u64 = 256 << 10;

fn findings(device: &Integrity) -> Vec<Finding> {
    let mut found = Vec::new();
    device.scrub(&mut |finding| found.push(finding), &mut |_, _| {}).unwrap();
    found
}

/// The tags in memory are right, and hide from readers until the next opening what the device holds.
#[test]
fn a_lost_write_of_tags_is_found_while_they_are_in_memory() {
    let stand = Stand::new(SIZE, false, &FormatOptions::default(), 1);
    let lazy = IntegrityOptions { clean_after: Duration::ZERO, ..Default::default() };
    let device = stand.open_with(&lazy).unwrap().device;
    let at = stand.tags_at() + 5 * 8;
    let before = read(stand.tag_ram(), at, 8).unwrap();
    write(&device, 5 * 4096, &[7; 4096], false).unwrap();
    // A tag that waits to be written is not lost.
    assert_eq!(findings(&device), []);
    device.flush().unwrap();
    for (place, old) in (at..).zip(before) {
        change(stand.tag_ram(), place, |byte| *byte = old);
    }
    let found = findings(&device);
    assert!(
        matches!(found[..], [Finding::Mismatch(mismatch)] if mismatch.sector == 5),
        "{found:?}"
    );
    assert_eq!(device.counts().mismatches, 1);
    read(&device, 5 * 4096, 4096).unwrap();
    drop(device);
    assert_eq!(read(&stand.open().device, 5 * 4096, 4096).unwrap_err().errno(), Errno::EILSEQ);
}

/// A region that became dirty for a write that then wrote nothing has a new generation, of which nothing was lost: not while it is dirty,
/// not behind a close, and not behind a crash.
#[test]
fn a_write_that_wrote_nothing_is_not_a_lost_one() {
    for of_tags in [false, true] {
        let options =
            FormatOptions { generations: true, region: Some(64 << 10), ..Default::default() };
        let stand = Stand::new(SIZE, false, &options, 2);
        write(&stand.open().device, 64 << 10, &[1; 4096], false).unwrap();
        let data = Arc::new(Sim::new(as_device(&stand.data), Faults::default()));
        let tags = Arc::new(Sim::new(as_device(stand.tags.as_ref().unwrap()), Faults::default()));
        let device = Integrity::open(data.clone(), Some(tags.clone())).unwrap().device;
        // Behind the map and the generations, which take a write each, the tags are read.
        let (sim, fail_at) = if of_tags { (&tags, 2) } else { (&data, 0) };
        let errno = Some(Errno::EAGAIN);
        sim.set_faults(Faults { fail_at: Some(fail_at), errno, ..Faults::default() });
        let written =
            write(&device, 64 << 10, &[2; 4096], false).map_err(|error: Error| error.errno());
        assert_eq!(written, Err(Errno::EAGAIN), "tags: {of_tags}");
        sim.set_faults(Faults::default());
        assert_eq!(findings(&device), [], "dirty, tags: {of_tags}");
        let crashed = stand.snapshot();
        assert_eq!(findings(&crashed.open().device), [], "crashed, tags: {of_tags}");
        drop(crashed.open());
        assert_eq!(findings(&crashed.open().device), [], "closed behind a crash, tags: {of_tags}");
        device.close().unwrap();
        drop(device);
        assert_eq!(findings(&stand.open().device), [], "closed, tags: {of_tags}");
    }
}
