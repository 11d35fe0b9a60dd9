//! Makes the content of a partition, except an ext4 volume that is made in place.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use ironmap::device::Device;
use ironmap::location::LocationOptions;
use ironmap::location::Site;
use ironmap::units::DevOffset;
use ironmap::{Buffer, Engine, Location};

use super::build::{Job, Ready, Scratch};
use super::layout::UNIT;
use super::out::Out;
use super::{DiskPart, fat, swap};
use crate::failure::Failure;
use crate::verity::{self, Parameters};

impl Job<'_> {
    /// Returns the parameters of a hash tree for data of `len` bytes.
    pub(super) fn parameters(
        &self,
        part: &DiskPart,
        index: usize,
        len: u64,
    ) -> Result<Parameters, Failure> {
        let uuid = match part.fs_uuid {
            Some(uuid) => uuid,
            None => self.ids.uuid(&format!("hash tree {}", index + 1))?,
        };
        let salt = self.ids.bytes(&format!("salt {}", index + 1))?.to_vec();
        let (data_block, hash_block) = (4096, 4096);
        Ok(Parameters { data_block, hash_block, data_blocks: len / 4096, salt, uuid })
    }

    /// Checks that a partition can have its content: checks the label, the size and the sources. Does not change the disk.
    pub(super) fn check_content(
        &self,
        part: &DiskPart,
        index: usize,
        ready: &Ready,
        ranges: &[Range<u64>],
    ) -> Result<(), Failure> {
        let len_of = |index: usize| ranges[index].end - ranges[index].start;
        let len = len_of(index);
        match ready {
            Ready::Nothing | Ready::Copy(_) => Ok(()),
            Ready::Volume(image) => {
                label_of(part, check_ext4_label)?;
                image.check_size(len, self.sector)?;
                image.check_sources()
            }
            Ready::Fat(root) => {
                label_of(part, fat::check_label)?;
                fat::check(root, len, self.sector)
            }
            Ready::Swap => {
                label_of(part, swap::check_label)?;
                match len {
                    ..swap::MIN => Err(Failure::usage("a swap area needs at least 40K")),
                    _ => Ok(()),
                }
            }
            Ready::Verity(data) => {
                let need = self.parameters(part, index, len_of(*data))?.tree_size();
                if need <= len {
                    return Ok(());
                }
                let need = need.div_ceil(1 << 20);
                Err(Failure::no_space(format!(
                    "the partition is too small for the hash tree: write {need}M, or min"
                )))
            }
        }
    }

    /// Makes the content of a partition for which [`check_content`](Self::check_content) has succeeded. For a hash tree, returns the index
    /// of the data and the root hash.
    pub(super) fn content(
        &self,
        parts: &[DiskPart],
        index: usize,
        ready: Ready,
        ranges: &[Range<u64>],
        (device, is_zeroed): (&dyn Device, bool),
    ) -> Result<Option<(usize, verity::Hash)>, Failure> {
        let (part, Range { start, end }) = (&parts[index], ranges[index].clone());
        let (len, failed) = (end - start, |error| self.failed(&error));
        let mut out = Out::new(device, start, is_zeroed).map_err(failed)?;
        let uuid = |what: &str| match part.fs_uuid {
            Some(uuid) => Ok(uuid),
            None => self.ids.uuid(&format!("{what} {}", index + 1)),
        };
        match ready {
            Ready::Nothing | Ready::Volume(_) => {}
            Ready::Copy(scratch) => self.copy(&scratch, &mut out)?,
            Ready::Fat(mut root) => {
                let label = label_of(part, fat::check_label)?;
                let [a, b, c, d, ..] = uuid("FAT")?;
                let serial = u32::from_be_bytes([a, b, c, d]);
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                let now = now.map_or(0, |now| now.as_secs() as i64);
                let time = self.context.source_date()?.unwrap_or(now);
                let hidden = u32::try_from(start / self.sector).unwrap_or(0);
                let identity = fat::Identity::new(label, serial, time, hidden)?;
                let stop = self.context.stop();
                fat::make(&mut out, &mut root, [len, self.sector], &identity, stop)?;
            }
            Ready::Swap => {
                let label = label_of(part, swap::check_label)?;
                swap::make(&mut out, len, uuid("swap")?, label.as_bytes()).map_err(failed)?;
            }
            Ready::Verity(data) => {
                let parameters =
                    self.parameters(part, index, ranges[data].end - ranges[data].start)?;
                let places =
                    [ranges[data].start, start].map(|start| verity::Place { device, start });
                let stop = self.context.stop();
                let mut go = |_| verity::unless_stopped(stop);
                let root = verity::make(places[0], places[1], &parameters, &mut go);
                return root.map(|root| Some((data, root))).map_err(failed);
            }
        }
        Ok(None)
    }

    /// Copies a volume from its temporary file.
    fn copy(&self, scratch: &Scratch, out: &mut Out<'_>) -> Result<(), Failure> {
        const CHUNK: u64 = 1 << 20;
        let failed = |error| self.failed(&error);
        let how = LocationOptions::new().engine(Engine::Psync);
        let from = Location::Plain(Site::file(&scratch.0)).open(&how).map_err(failed)?.device;
        let mut buffer = Buffer::aligned(CHUNK as usize).map_err(failed)?;
        let (mut at, size) = (0, from.size());
        while at < size {
            self.context.stop().check()?;
            let data = from.data_from(DevOffset(at)).map_err(failed)?;
            let begin = data.start.0.min(size) / UNIT * UNIT;
            if begin > at {
                out.zero(at, begin - at).map_err(failed)?;
                at = begin;
                continue;
            }
            let len = (size - at).min(CHUNK);
            let bytes = &mut buffer[..len as usize];
            from.read_exact_at(bytes, DevOffset(at)).map_err(failed)?;
            out.put(at, bytes).map_err(failed)?;
            at += len;
        }
        Ok(())
    }
}

fn check_ext4_label(label: &str) -> Result<(), String> {
    // The length of the label field in the superblock, in bytes.
    const MAX: usize = 16;
    match label.len() {
        0..=MAX => Ok(()),
        _ => Err(format!("the label {label:?} is longer than {MAX} bytes")),
    }
}

/// Returns the label of the file system: the label that the user gave or, if there is none, the label of the partition, provided that the
/// file system can store it.
fn label_of(
    part: &DiskPart,
    is_possible: impl Fn(&str) -> Result<(), String>,
) -> Result<&str, Failure> {
    match &part.fs_label {
        Some(label) => is_possible(label).map(|()| label.as_str()).map_err(Failure::usage),
        None if is_possible(&part.label).is_ok() => Ok(&part.label),
        None => Ok(""),
    }
}
