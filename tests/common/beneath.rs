//! The layer below the volumes of the tests: a plain device, an integrity device, or an NBD server with its client.
//!
//! `IRONMAP_BENEATH` chooses the layer, for example `integrity-bitmap`. `./x beneath` runs the test suites over each layer. For an
//! integrity layer, a tag (checksum) of each sector is computed when an image is opened. The tags are kept in memory, so the image itself
//! contains no tags and other programs can read it. In tests with power cuts, the tags are in the [tail] of the recorded device, so that
//! one cut applies to data and tags. For an NBD layer, the writes are recorded on the device below the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use ironmap::device::{Device, Engine, Ram};
use ironmap::integrity::{FormatOptions, Integrity, IntegrityOptions, Mode, TupleKind, format};
use ironmap::{Location, Result, Volume, VolumeOptions};

use super::nbd_export::{Form, OverNbd};

/// The layer below a volume.
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

/// The layer that `IRONMAP_BENEATH` names, if it is set.
pub(crate) fn chosen() -> Option<Beneath> {
    let name = std::env::var("IRONMAP_BENEATH").ok()?;
    let known = BENEATH.into_iter().find(|known| known.0 == name);
    Some(known.unwrap_or_else(|| panic!("IRONMAP_BENEATH: there is no {name}")).1)
}

/// The mode of the integrity layer, if `IRONMAP_BENEATH` chooses this layer.
pub(crate) fn integrity() -> Option<Mode> {
    match chosen()? {
        Beneath::Integrity(mode) => Some(mode),
        Beneath::Nbd(_) => None,
    }
}

/// The format options for a mode of the integrity layer. Bitmap mode uses T10 tuples and the other modes use NVMe tuples, so both kinds are
/// tested.
fn options(mode: Mode, sector: u32) -> FormatOptions {
    FormatOptions::new()
        .interval(if sector > 512 { 4096 } else { 512 })
        .kind(if mode == Mode::Bitmap { TupleKind::T10 } else { TupleKind::Nvme64 })
        .mode(mode)
        .region(64 << 10)
        .journal((mode == Mode::Journal).then_some(512 << 10))
}

/// Opens a volume like [`Volume::open`], over the layer that `IRONMAP_BENEATH` chooses. With the null engine, no layer is added: this
/// engine reads no data, so no data can match a checksum.
pub(crate) fn open(place: &Location, options: &VolumeOptions) -> Result<Volume> {
    let how = options.location_options();
    if chosen().is_none() || how.engine == Engine::Null {
        return options.open(place);
    }
    options.open_on(over(place.open(&how)?.device))
}

/// Adds the layer that `IRONMAP_BENEATH` chooses over a device without injected faults.
pub(crate) fn over(device: Arc<dyn Device>) -> Arc<dyn Device> {
    let held = Arc::clone(&device);
    over_faulty(device, &held)
}

/// Adds the layer that `IRONMAP_BENEATH` chooses over `device`. `device` injects faults, or the test observes its requests. `held` is the
/// device below `device`, which stores the content.
pub(crate) fn over_faulty(device: Arc<dyn Device>, held: &Arc<dyn Device>) -> Arc<dyn Device> {
    let mode = match chosen() {
        Some(Beneath::Integrity(mode)) => mode,
        Some(Beneath::Nbd(form)) => return Arc::new(OverNbd::new(device, form)),
        None => return device,
    };
    let sector = held.limits().logical_block;
    if !matches!(sector, 512 | 4096) {
        // A protection tuple covers 512 or 4096 bytes, so a device with another sector size gets no layer.
        return device;
    }
    let tags: Arc<dyn Device> = Arc::new(Ram::new(held.size() / 16 + (16 << 20)));
    format(held, Some(&tags), &options(mode, sector), &mut |_, _| {}).expect("tags");
    let opened = Integrity::open(device, Some(tags));
    Arc::new(opened.expect("open the integrity device").device)
}

/// A device that contains the data and, after them, the tags (checksums), for tests with power cuts.
pub(crate) mod tail {
    use super::{
        Arc, AtomicU64, Beneath, Device, Duration, Integrity, IntegrityOptions, Mode, OverNbd, Ram,
        Relaxed, chosen, format, integrity, options,
    };

    /// A copy of the device's content before a workload. If the chosen layer is an integrity device, the copy has additional space for tags
    /// at the end.
    pub(crate) fn tagged(base: &Ram) -> Ram {
        integrity().map_or_else(|| base.snapshot(), |mode| tagged_as(mode, base))
    }

    fn tagged_as(mode: Mode, base: &Ram) -> Ram {
        let sector = base.limits().logical_block;
        // The tags need 1/32 of the device, and the journal needs space too. The device grows by more than the sum, so the volume keeps its
        // size.
        let device = Arc::new(base.resized(base.size() + base.size() / 16 + (8 << 20)));
        let whole = Arc::clone(&device) as Arc<dyn Device>;
        format(&whole, None, &options(mode, sector), &mut |_, _| {}).expect("a tail of tags");
        device.snapshot()
    }

    /// Adds the layer that `IRONMAP_BENEATH` chooses over a device whose writes are recorded. A workload runs on the result.
    pub(crate) fn open(device: Arc<dyn Device>) -> Arc<dyn Device> {
        match chosen() {
            Some(Beneath::Integrity(_)) => {}
            Some(Beneath::Nbd(form)) => return Arc::new(OverNbd::new(device, form)),
            None => return device,
        }
        // With these settings, the integrity layer sends more requests: each flush clears the dirty bitmap, and tags are not cached. More
        // requests give more positions for a power cut.
        let options = IntegrityOptions::new().cache(0).clean_after(Duration::ZERO);
        let opened = Integrity::open_with(device, None, &options);
        Arc::new(opened.expect("open the integrity device").device)
    }

    /// Totals over all recoveries of a test campaign: the number of recovered states of the device, of regions whose tags were computed
    /// again, of new tags, and of journal records.
    #[derive(Debug, Default)]
    pub(crate) struct Recoveries {
        pub(crate) states: AtomicU64,
        pub(crate) regions: AtomicU64,
        pub(crate) retagged: AtomicU64,
        pub(crate) records: AtomicU64,
    }

    /// The first `size` bytes of a device after a power cut. An integrity device is recovered before they are read, and each sector must
    /// match its tag.
    ///
    /// # Errors
    /// The first failure of the recovery or of the verification.
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
