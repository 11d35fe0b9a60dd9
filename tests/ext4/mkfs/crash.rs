//! Power cuts during mkfs. Afterwards the device contains the complete new volume, or nothing that looks like a volume.

use std::sync::Arc;

use ironmap::Volume;
use ironmap::device::{Crashes, Device, Entry, Ram, Record};
use ironmap::units::DevOffset;

use super::{UUID, options};

const SIZE: u64 = 4 << 20;
const SEED: u64 = 0x4D4B_4653;

fn bytes(device: &Ram) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    device.read_exact_at(&mut bytes, DevOffset(0)).unwrap();
    bytes
}

#[test]
fn a_volume_is_there_as_a_whole_or_not_at_all() {
    for text in ["", "-b 4096", "-b 2048 -O ^metadata_csum"] {
        let base = Ram::new(SIZE);
        // The device contains a valid volume before mkfs.
        let before = options("-b 1024").uuid([9; 16]);
        ironmap::tools::make(&base, &before).unwrap();
        let record = Record::new(Arc::new(base.snapshot()));
        ironmap::tools::make(&record, &options(text).force(true)).unwrap();

        let mut crashes = Crashes::new(&base, record.log());
        let entries = crashes.log().entries();
        let flush = entries.iter().position(|entry| *entry == Entry::Flush).unwrap();
        // The old superblock is overwritten with zeros before a new one is written.
        let only_cleared = |entry: &Entry| match entry {
            Entry::Write { data, .. } => data.iter().all(|byte| *byte == 0),
            _ => true,
        };
        assert!(entries[..flush].iter().all(only_cleared), "{text}");
        let names = crashes.names(SEED, 8);
        let end = crashes.log().len();
        let made = bytes(&crashes.state(*names.iter().rfind(|name| name.cut == end).unwrap()));
        let (mut whole, mut nothing) = (0, 0);
        for name in names {
            let state = crashes.state(name);
            let content = bytes(&state);
            match Volume::on(Arc::new(state)) {
                Ok(volume) if volume.ext4().unwrap().superblock().uuid == UUID => {
                    assert!(content == made, "{text}: {name} is a part of the volume");
                    whole += 1;
                }
                // mkfs clears the superblock of the old volume and then flushes. A power cut before this flush can preserve the old
                // superblock, even if other blocks have been written.
                Ok(_) => assert!(name.cut <= flush + 1, "{text}: {name} is the old volume"),
                Err(_) => nothing += 1,
            }
        }
        assert!(whole > 0 && nothing > 10, "{text}: {whole} whole, {nothing} without");
    }
}
