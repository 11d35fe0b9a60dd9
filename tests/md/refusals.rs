//! Members that do not belong to one array, members that are not used, and superblocks with damage.

use std::sync::Arc;

use ironmap::ErrorKind;
use ironmap::device::Ram;
use ironmap::md::{Member, assemble, look};
use ironmap::units::DevOffset;

use crate::common::rng::Rng;
use crate::shape::{FAULTY, Shape, put32, put64, seal};
use crate::{assert_content, members, refusal};

const SEED: u64 = 0x4D46;
const LEN: usize = 64 << 10;

/// A mirror of two members with this content.
fn mirror(minor: u32, content: &[u8]) -> (Shape, Vec<Vec<u8>>) {
    let shape = Shape::new(minor, 1, 0, 2, (content.len() / 512) as u64);
    let images = (0..2).map(|number| shape.image(number, content)).collect();
    (shape, images)
}

fn content() -> Vec<u8> {
    Rng::new(SEED).bytes(LEN)
}

/// Changes the superblock of an image, and corrects its checksum.
fn change(shape: &Shape, image: &mut [u8], how: impl FnOnce(&mut [u8])) {
    let place = shape.place(image.len());
    let block = &mut image[place..place + 4096];
    how(block);
    seal(block);
}

fn assert_refused(images: &[Vec<u8>], kind: ErrorKind, texts: &[&str]) {
    let error = refusal(members(images, &[]));
    let shown = error.to_string();
    assert_eq!(error.kind(), kind, "{shown}");
    for text in texts {
        assert!(shown.contains(text), "{text}: {shown}");
    }
}

/// Asserts that an array can be read, and that it has one fault, which contains these texts.
fn assert_fault(images: &[Vec<u8>], expected: &[u8], texts: &[&str]) {
    let array = assemble(members(images, &[])).unwrap();
    assert_content(&array, expected, "the array", SEED);
    let faults = array.faults().join("\n");
    for text in texts {
        assert!(faults.contains(text), "{text}: {faults}");
    }
}

/// Devices that are not members of one array are refused, and the error names them.
#[test]
fn foreign_and_double_members_are_refused() {
    let content = content();
    for minor in [0, 1, 2, 90] {
        let (shape, images) = mirror(minor, &content);
        let twice = [images[0].clone(), images[0].clone()];
        assert_refused(&twice, ErrorKind::InvalidInput, &["0 and 1 are the same member"]);
        let none = [images[0].clone(), content.clone()];
        assert_refused(&none, ErrorKind::InvalidInput, &["1 is not a member"]);
        let mut other = images.clone();
        change(&shape, &mut other[1], |block| put32(block, 20, 99));
        assert_refused(&other, ErrorKind::InvalidInput, &["0 and 1 belong to different MD arrays"]);
    }
    let (shape, mut images) = mirror(2, &content);
    change(&shape, &mut images[1], |block| block[160] = 0);
    assert_refused(&images, ErrorKind::Corrupt, &["0 and 1 both have the role 0"]);
}

/// ironmap does not use a member with an older superblock, a failed member, a spare, or a member with a damaged superblock. The array has
/// the content of the other members.
#[test]
fn members_that_cannot_be_used_are_left_out() {
    let content = content();
    let old = vec![0xEE; LEN];
    for minor in [0, 1, 2, 90] {
        let (mut shape, mut images) = mirror(minor, &content);
        images[1] = shape.image(1, &old);
        shape.events = 9;
        images[0] = shape.image(0, &content);
        assert_fault(
            &images,
            &content,
            &["1 is left out: it is older than 0 (7 events, not 9)", "role 1"],
        );

        // The numbers of events (updates) in the two superblocks differ only by one, so a member is not older. Only the roles in the newest
        // superblock show that it has failed.
        shape.events = 8;
        shape.roles = vec![0, FAULTY];
        images[0] = shape.image(0, &content);
        assert_fault(&images, &content, &["1 is left out: it has failed, as 0 says"]);

        let (shape, mut images) = mirror(minor, &content);
        images[1] = shape.image(1, &old);
        let place = shape.place(images[1].len());
        images[1][place + 24] ^= 1;
        assert_fault(&images, &content, &["1 is left out: MD superblock: the checksum"]);

        // The numbers of events (updates) in the two superblocks differ by one because the machine stopped while the superblocks were
        // written.
        let (mut shape, mut images) = mirror(minor, &content);
        shape.events = 8;
        images[1] = shape.image(1, &content);
        let array = assemble(members(&images, &[])).unwrap();
        assert!(array.faults().is_empty(), "{:?}", array.faults());
    }
    let (shape, mut images) = mirror(1, &content);
    let end = images[1].len() - 20 * 512;
    images[1].truncate(end);
    assert_fault(&images, &content, &["1 is left out: it has ", "too few for its data"]);
    let _ = shape;
}

/// If members have equal numbers of events (updates), ironmap prefers the data of the member that was changed last, and with equal times
/// the data of the member with the lowest role. The order of the arguments never matters.
#[test]
fn the_order_of_the_members_does_not_matter() {
    let (content, other) = (content(), vec![0xEE; LEN]);
    for minor in [0, 1, 2, 90] {
        for later in 0..2 {
            let (mut shape, mut images) = mirror(minor, &other);
            shape.updated += 1;
            images[later] = shape.image(later as u32, &content);
            let newest = later.to_string();
            let texts = ["the same number of events", &*format!("the data of {newest} are")];
            assert_fault(&images, &content, &texts);
            // A member's name is its position in the list, so the reversal of the list also changes the names.
            images.reverse();
            assert_fault(&images, &content, &["the same number of events"]);
        }
        let (shape, mut images) = mirror(minor, &content);
        images[1] = shape.image(1, &other);
        for _ in 0..2 {
            assert_fault(&images, &content, &[]);
            images.reverse();
        }
    }
}

/// If two members name the same array, but describe different shapes of the array, ironmap refuses them. The error names the members.
#[test]
fn members_with_different_shapes_are_refused() {
    let content = content();
    for minor in [0, 1, 2, 90] {
        for change in [
            |shape: &mut Shape| shape.level = 4,
            |shape: &mut Shape| shape.layout = 2,
            |shape: &mut Shape| shape.chunk = 16,
            |shape: &mut Shape| shape.disks = 3,
        ] {
            let (mut shape, mut images) = mirror(minor, &content);
            change(&mut shape);
            images[1] = shape.image(1, &content);
            assert_refused(&images, ErrorKind::Corrupt, &["0", "1", " contradict each other: "]);
            // A member with an older superblock is not used. Its different shape is no error, because the array may have been reshaped
            // after the last update of this superblock.
            shape.events = 3;
            images[1] = shape.image(1, &content);
            assert_fault(&images, &content, &["1 is left out: it is older than 0"]);
        }
    }
}

/// Two halves of a mirror that were used separately are refused, because each has data that the other lacks.
#[test]
fn mirrors_that_were_used_separately_are_refused() {
    let content = content();
    for minor in [0, 1, 2, 90] {
        let (mut shape, mut images) = mirror(minor, &content);
        shape.roles = vec![FAULTY, 1];
        images[1] = shape.image(1, &vec![1; LEN]);
        shape.roles = vec![0, FAULTY];
        shape.events = 8;
        images[0] = shape.image(0, &content);
        // The newest superblock says that the other member has failed, so the other member is not used. If the superblocks of both members
        // have the same number of events (updates), neither superblock is the newest.
        assert_fault(&images, &content, &["1 is left out"]);
        let mut one = shape.clone();
        one.roles = vec![0, 1];
        images[0] = one.image(0, &content);
        assert_refused(&images, ErrorKind::Corrupt, &["used separately", "1 and 0"]);
    }
}

/// ironmap refuses features that it cannot read, and the error names them. A dirty array with parity is refused if a member is missing.
#[test]
fn unsupported_states_are_refused_by_name() {
    let content = content();
    let with = |features| {
        let (mut shape, mut images) = mirror(2, &content);
        shape.features = features;
        for (number, image) in (0..).zip(&mut images) {
            *image = shape.image(number, &content);
        }
        images
    };
    assert_refused(&with(4), ErrorKind::Unsupported, &["being reshaped"]);
    assert_refused(&with(512), ErrorKind::Unsupported, &["write journal"]);
    assert_refused(&with(1 << 20), ErrorKind::Unsupported, &["unknown features (0x100000)"]);
    assert!(assemble(members(&with(1 | 256), &[])).is_ok());

    for (level, layout, text) in
        [(10, 0x201, "is far"), (10, 0x1_0201, "is offset"), (6, 7, "layout 7")]
    {
        let shape = Shape::new(2, level, layout, 4, 64);
        let images: Vec<_> = (0..4).map(|number| shape.image(number, &content)).collect();
        assert_refused(&images, ErrorKind::Unsupported, &[text]);
    }
    let mut shape = Shape::new(2, 5, 2, 3, 64);
    shape.dirty = true;
    let zeros = vec![0; 64 * 512];
    let mut images: Vec<_> = (0..3).map(|number| shape.image(number, &zeros)).collect();
    assert_fault(&images, &zeros.repeat(2), &["not stopped cleanly"]);
    images.pop();
    assert_refused(&images, ErrorKind::Unsupported, &["not stopped cleanly", "roles 2"]);
    let (shape, mut images) = mirror(90, &content);
    let place = shape.place(images[0].len());
    let block = &mut images[0][place..place + 4096];
    block.as_chunks_mut::<4>().0.iter_mut().for_each(|word| word.reverse());
    assert_refused(&images, ErrorKind::Unsupported, &["big-endian"]);
}

/// If a range of a member is in its log of bad blocks, or is not in sync, ironmap reads the range from the other member. If no member has
/// the data, the read fails.
#[test]
fn bad_blocks_are_read_from_other_members() {
    let content = content();
    let (mut shape, mut images) = mirror(2, &content);
    let bad = |shape: &Shape, image: &mut Vec<u8>, first: u64, count: u64| {
        shape_log(image, &[(shape.start() as u64 + first) << 10 | count]);
        let at = shape.start() * 512 + first as usize * 512;
        image[at..at + count as usize * 512].fill(0xBB);
        change(shape, image, |block| {
            put32(block, 8, 8);
            block[186] = 8;
            put32(block, 188, 8);
        });
    };
    bad(&shape, &mut images[0], 10, 3);
    bad(&shape, &mut images[1], 13, 20);
    let array = assemble(members(&images, &[])).unwrap();
    assert_content(&array, &content, "bad blocks", SEED);
    bad(&shape, &mut images[1], 12, 20);
    let device = assemble(members(&images, &[])).unwrap().device();
    let mut bytes = [0; 512];
    assert!(device.read_exact_at(&mut bytes, DevOffset(11 * 512)).is_ok());
    let failed = device.read_exact_at(&mut bytes, DevOffset(12 * 512)).unwrap_err();
    assert!(matches!(failed.kind(), ErrorKind::Io(_)), "{failed}");
    assert!(failed.to_string().contains("0 has a bad block at byte 6144"), "{failed}");

    shape.features = 2;
    let mut half = content.clone();
    half[LEN / 2..].fill(0xAA);
    images[1] = shape.image(1, &half);
    change(&shape, &mut images[1], |block| put64(block, 152, (LEN / 1024) as u64));
    shape.features = 0;
    images[0] = shape.image(0, &content);
    assert_fault(&images, &content, &["1 is not completely in sync"]);
    bad(&shape, &mut images[0], 1, 2);
    assert_fault(&images, &content, &["1 is not completely in sync"]);
    bad(&shape, &mut images[0], 100, 2);
    let device = assemble(members(&images, &[])).unwrap().device();
    let failed = device.read_exact_at(&mut bytes, DevOffset(100 * 512)).unwrap_err();
    assert!(failed.to_string().contains("1 is not in sync at byte 51200"), "{failed}");
}

/// Writes a log of bad blocks 8 sectors after a superblock of version 1.2.
fn shape_log(image: &mut [u8], entries: &[u64]) {
    let log = &mut image[4096 + 4096..4096 + 8192];
    log.fill(0xFF);
    for (slot, entry) in log.chunks_mut(8).zip(entries) {
        slot.copy_from_slice(&entry.to_le_bytes());
    }
}

/// An array can only be read. A write fails with an error that names this reason.
#[test]
fn arrays_cannot_be_written() {
    let (_, images) = mirror(2, &content());
    let device = assemble(members(&images, &[])).unwrap().device();
    let write = device.write_all_at(&[std::io::IoSlice::new(&[0; 512])], DevOffset(0), false);
    assert_eq!(write.unwrap_err().kind(), ErrorKind::ReadOnly);
    assert!(!device.is_writable() && device.limits().read_only);
}

/// Random numbers in every field of a superblock, with a correct checksum, give an error or a device whose reads end.
#[test]
fn hostile_superblocks_are_survived() {
    let mut rng = Rng::new(SEED);
    let numbers = [0, 1, 2, 3, 8, 0x7F, 0xFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF];
    let (mut assembled, mut read) = (0, 0);
    for _ in 0..20_000 {
        let minor = [0, 1, 2, 90][rng.below(4) as usize];
        let (level, layout) =
            [(0, 1), (1, 0), (5, 2), (6, 2), (10, 0x102), (-1, 0)][rng.below(6) as usize];
        let shape = Shape::new(minor, level, layout, 4, 16);
        let mut images: Vec<_> = (0..4).map(|number| shape.image(number, &[7; 8192])).collect();
        let changed = rng.below(5) as usize;
        for image in &mut images[..changed.min(4)] {
            change(&shape, image, |block| {
                for _ in 0..=rng.below(2) {
                    let words = if minor == 90 { 164 } else { 66 };
                    let at = 4 * rng.below(words) as usize;
                    put32(block, at, numbers[rng.below(11) as usize]);
                }
            });
        }
        for image in &images {
            let _ = look(&Ram::from_image(image));
        }
        let member = |(index, image): (usize, &Vec<u8>)| Member {
            name: index.to_string(),
            device: Arc::new(Ram::from_image(image)),
        };
        let Ok(array) = assemble(images.iter().enumerate().map(member).collect()) else { continue };
        assembled += 1;
        let device = array.device();
        let mut bytes = vec![0; 9000];
        for at in [0, device.size() / 2, device.size().saturating_sub(9000)] {
            read += u32::from(device.read_exact_at(&mut bytes, DevOffset(at)).is_ok());
        }
    }
    assert!(assembled > 1000 && read > 1000, "{assembled} arrays, {read} reads");
}
