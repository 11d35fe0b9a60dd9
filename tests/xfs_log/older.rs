//! Logs that do not match the metadata. There are three cases: an older log with newer metadata of the same volume, a newer log with older
//! metadata, and a log whose tail is lost. If the kernel refuses the mount, ironmap refuses too, with an error that names the reason. With
//! a newer log, ironmap may open the volume, but its check must find the damage. If the kernel recovers the log, the kernel and ironmap see
//! the same tree.

use crate::common::image::Image;
use crate::common::rng::Rng;
use crate::common::skip::Need;
use crate::require;
use crate::state::{End, Variant, Work, copy, load, make};
use crate::torn::{Log, Outcomes, judge};

const SEED: u64 = 0x01DE;
/// The maximum number of changes (steps) before each state of the volume.
const STEPS: u64 = 250;
/// How many different damages to the tail are tried for each log.
const DAMAGES: u64 = 2;
const NEWER_LOG: &str = "the newer log";

/// A copy of an image. Its log is replaced by the log of another state of the volume.
fn with_log_of(image: &Image, other: &Image) -> Image {
    let copy = copy(image);
    Log::of(&copy).write(0, &Log::of(other).bytes());
    copy
}

/// Two successive states of a volume. Threads change the volume before each state. `ends` says how these changes end each time: by a
/// shutdown or by an unmount.
fn states(variant: &Variant, ends: [End; 2], rng: &mut Rng) -> [Image; 2] {
    let image = make(variant);
    ends.map(|end| {
        load(&image, variant, rng.next(), (Work::All, STEPS), end);
        copy(&image)
    })
}

/// A copy of an image, and a description of the damage. The log of the copy has lost its tail: some blocks at the tail contain zeros, or
/// data of the previous cycle of the log.
fn without_tail(image: &Image, rng: &mut Rng) -> (Image, String) {
    let copy = copy(image);
    let volume = image.open().expect("a dirty volume");
    let tail = u64::from(volume.xfs().expect("an XFS volume").log().tail.1);
    let (log, blocks, is_zeroed) = (Log::of(&copy), 1 + rng.below(8), rng.below(2) == 0);
    for block in tail..tail + blocks {
        if is_zeroed { log.write(block, &[0; 512]) } else { log.make_old(block, rng) }
    }
    (copy, format!("{blocks} blocks of the tail, zeroed: {is_zeroed}"))
}

#[test]
fn logs_of_other_states() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io")]);
    let rng = &mut Rng::new(SEED);
    let mut outcomes = Outcomes::default();
    let ends = [End::ShutDown, End::Unmount];
    for mkfs in ["-m rmapbt=1", "-m finobt=0,reflink=0 -i sparse=0"] {
        let variant = Variant { name: "older", size: "96M", mkfs, mount: "rw", newer: false };
        for [first, second] in ends.map(|first| ends.map(|second| [first, second])).concat() {
            let [older, newer] = states(&variant, [first, second], rng);
            let seed = rng.next();
            let what = format!("{variant:?}, {first:?}, then {second:?}, seed {seed:#x}");
            let mut pair = |image: &Image, log: &Image, how: &str| {
                judge(&with_log_of(image, log), &format!("{what}: {how}"), seed, &mut outcomes);
            };
            pair(&newer, &older, "the older log");
            pair(&older, &newer, NEWER_LOG);
            for _ in (0..DAMAGES).filter(|_| second == End::ShutDown) {
                let (image, how) = without_tail(&newer, rng);
                judge(&image, &format!("{what}: {how}"), seed, &mut outcomes);
            }
        }
    }
    println!("{outcomes:#?}");
    assert!(outcomes.only_opened.is_empty(), "the kernel refuses them: {outcomes:#?}");
    // The kernel refuses these volumes, and ironmap opens them. This is permitted only with a newer log. Such a log contains changes of
    // blocks, but expects newer content of these blocks than the device has. Linux then refuses to write the changed blocks.
    let is_newer_log = |what: &String| what.ends_with(NEWER_LOG);
    let found_damaged = &outcomes.only_found_damaged;
    assert!(found_damaged.iter().all(is_newer_log), "the kernel refuses them: {outcomes:#?}");
    assert!(outcomes.alike > 0 && outcomes.refused_by_both > 0, "{outcomes:?}");
}
