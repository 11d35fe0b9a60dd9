//! The layer below the volumes of the tests: their plain devices, or an integrity device over each, or an NBD server with its client over each.
//!
//! `IRONMAP_BENEATH` chooses the layer, for example `integrity-bitmap`: `./x beneath` runs the suites with each. The tags of an image or of
//! memory are made when it is opened. They stay in memory, so programs that read the image do not see them. In tests with power cuts
//! the tags are in the [tail] of the recorded device, so that one cut applies to both. A server stores nothing: its writes are recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use ironmap::device::{Device, Engine, Ram};
use ironmap::integrity::{FormatOptions, Integrity, IntegrityOptions, Mode, TupleKind, format};
use ironmap::{Location, Result, Volume, VolumeOptions};

use super::nbd_export::{Form, OverNbd};

/// The layer beneath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beneath {
    Integrity(Mode),
    Nbd(Form),
}

const BENEATH: [(&str, Beneath); 4] = [
    ("integrity-bitmap", Beneath::Integrity(Mode::Bitmap)),
    ("integrity-journal", Beneath::Integrity(Mode::Journal)),
    ("nbd", Beneath::Nbd(Form::Extended)),
    ("nbd-plain", Beneath::Nbd(Form::Plain)),
];

/// The layer that the environment names, if any.
pub(crate) fn chosen() -> Option<Beneath> {
    let name = std::env::var("IRONMAP_BENEATH").ok()?;
    let known = BENEATH.into_iter().find(|known| known.0 == name);
    Some(known.unwrap_or_else(|| panic!("IRONMAP_BENEATH: there is no {name}")).1)
}

/// The mode of the integrity device below, if there is one.
pub(crate) fn integrity() -> Option<Mode> {
    match chosen()? {
        Beneath::Integrity(mode) => Some(mode),
        Beneath::Nbd(_) => None,
    }
}

/// Each mode uses one kind of tuples, so that both kinds are tested.
fn options(mode: Mode, sector: u32) -> FormatOptions {
    FormatOptions::new()
        .interval(if sector > 512 { 4096 } else { 512 })
        .kind(if mode == Mode::Bitmap { TupleKind::T10 } else { TupleKind::Nvme64 })
        .mode(mode)
        .region(64 << 10)
        .journal((mode == Mode::Journal).then_some(512 << 10))
}

/// Opens a volume like [`Volume::open`]. The null engine gets no layer below, because requests that complete without a read cannot be verified.
pub(crate) fn open(place: &Location, options: &VolumeOptions) -> Result<Volume> {
    let how = options.location_options();
    if chosen().is_none() || how.engine == Engine::Null {
        return options.open(place);
    }
    options.open_on(over(place.open(&how)?.device))
}

/// The layer over a device without faults.
pub(crate) fn over(device: Arc<dyn Device>) -> Arc<dyn Device> {
    let held = Arc::clone(&device);
    over_faulty(device, &held)
}

/// The layer over a device that fails or is watched; `held` is the device below that.
pub(crate) fn over_faulty(device: Arc<dyn Device>, held: &Arc<dyn Device>) -> Arc<dyn Device> {
    let mode = match chosen() {
        Some(Beneath::Integrity(mode)) => mode,
        Some(Beneath::Nbd(form)) => return Arc::new(OverNbd::new(device, form)),
        None => return device,
    };
    let sector = held.limits().logical_block;
    if !matches!(sector, 512 | 4096) {
        // No tuple protects that much: tests of such devices use them without a layer.
        return device;
    }
    let tags: Arc<dyn Device> = Arc::new(Ram::new(held.size() / 16 + (16 << 20)));
    format(held, Some(&tags), &options(mode, sector), &mut |_, _| {}).expect("tags");
    let opened = Integrity::open(device, Some(tags));
    Arc::new(opened.expect("open the integrity device").device)
}

/// Data and tags on one device whose power is cut.
pub(crate) mod tail {
    use super::{
        Arc, AtomicU64, Beneath, Device, Duration, Integrity, IntegrityOptions, Mode, OverNbd, Ram,
        Relaxed, chosen, format, integrity, options,
    };

    /// The first state of a workload: the same device, extended by tags if there is a layer below.
    pub(crate) fn tagged(base: &Ram) -> Ram {
        integrity().map_or_else(|| base.snapshot(), |mode| tagged_as(mode, base))
    }

    fn tagged_as(mode: Mode, base: &Ram) -> Ram {
        let sector = base.limits().logical_block;
        // The tail takes 1/32 and the journal. The whole volume must fit before the tail.
        let device = Arc::new(base.resized(base.size() + base.size() / 16 + (8 << 20)));
        let whole = Arc::clone(&device) as Arc<dyn Device>;
        format(&whole, None, &options(mode, sector), &mut |_, _| {}).expect("a tail of tags");
        device.snapshot()
    }

    /// The device that a workload runs on, over a recorded one.
    pub(crate) fn open(device: Arc<dyn Device>) -> Arc<dyn Device> {
        match chosen() {
            Some(Beneath::Integrity(_)) => {}
            Some(Beneath::Nbd(form)) => return Arc::new(OverNbd::new(device, form)),
            None => return device,
        }
        // Every flush clears the map, and tags are written and read again, so that there are more requests to cut.
        let options = IntegrityOptions::new().cache(0).clean_after(Duration::ZERO);
        let opened = Integrity::open_with(device, None, &options);
        Arc::new(opened.expect("open the integrity device").device)
    }

    /// Counts of recoveries, for the report of a campaign.
    #[derive(Debug, Default)]
    pub(crate) struct Recoveries {
        pub(crate) states: AtomicU64,
        pub(crate) regions: AtomicU64,
        pub(crate) retagged: AtomicU64,
        pub(crate) records: AtomicU64,
    }

    /// The volume of `size` bytes that is on a device after a power cut: the integrity device is recovered, and then each of its sectors
    /// verifies.
    ///
    /// # Errors
    /// The fault.
    pub(crate) fn recovered(image: Ram, size: u64, counts: &Recoveries) -> Result<Ram, String> {
        if integrity().is_none() {
            return Ok(image);
        }
        let image = Arc::new(image);
        let fail = |error: ironmap::Error| format!("the integrity device: {error}");
        let opened = Integrity::open(image.clone(), None).map_err(fail)?;
        let mut wrong = Ok(());
        let mut found = |finding| wrong = Err(format!("after recovery: {finding:?}"));
        opened.device.scrub(&mut found, &mut |_, _| {}).map_err(fail)?;
        wrong?;
        opened.device.close().map_err(fail)?;
        counts.states.fetch_add(1, Relaxed);
        counts.regions.fetch_add(opened.recovered.regions, Relaxed);
        counts.retagged.fetch_add(opened.recovered.retagged, Relaxed);
        counts.records.fetch_add(opened.recovered.records, Relaxed);
        Ok(image.resized(size))
    }
}
