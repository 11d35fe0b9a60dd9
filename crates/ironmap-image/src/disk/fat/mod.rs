//! Makes a FAT file system together with its content. Source: Microsoft's FAT specification (fatgen103).
//!
//! All files are known before the first write, so each file and directory occupies one range of clusters, and equal sources produce equal
//! bytes.

mod dates;
mod geometry;
mod names;
mod tree;

use std::fs::File;
use std::io::Read;

use self::dates::time_and_date;
use self::geometry::{Geometry, Kind};
use self::names::{Short, Shorts, long};
pub(crate) use self::tree::Dir;
use self::tree::{Clusters, Entry, HostFile, Node};
use super::out::Out;
use crate::failure::Failure;
use crate::stop::Stop;

/// The length of a label in bytes.
const LABEL: usize = 11;
const DIRECTORY: u8 = 0x10;
const ARCHIVE: u8 = 0x20;
const VOLUME_LABEL: u8 = 0x08;
/// The numbers of two sectors of FAT32 to which the boot sector points: the sector with the counts of free clusters, and the backup of the
/// boot sector.
const INFO: u16 = 1;
const BACKUP: u16 = 6;

/// The fields of a new file system that do not depend on its files.
pub(super) struct Identity {
    /// The label, in upper case and padded with spaces.
    label: [u8; LABEL],
    pub(super) serial: u32,
    /// The time of the label, in seconds since 1970.
    pub(super) time: i64,
    /// The position of the file system on the disk, in sectors. FAT calls these sectors hidden.
    pub(super) hidden: u32,
}

impl Identity {
    /// `label` must be a label that FAT can store. [`label_of`] checks this.
    pub(super) fn new(label: &str, serial: u32, time: i64, hidden: u32) -> Result<Self, Failure> {
        let label = label_of(label).map_err(Failure::usage)?;
        Ok(Self { label, serial, time, hidden })
    }
}

/// Refuses a label that FAT cannot store. The error text is the reason.
pub(super) fn check_label(label: &str) -> Result<(), String> {
    label_of(label).map(|_| ())
}

/// Returns the label as it is stored. Without a label, FAT stores the text `NO NAME`.
///
/// # Errors
/// The reason why FAT cannot store the label.
fn label_of(label: &str) -> Result<[u8; LABEL], String> {
    let is_good = |char: char| (' '..='~').contains(&char) && !"\"*+,./:;<=>?[\\]|".contains(char);
    if label.len() > LABEL || !label.chars().all(is_good) || label.starts_with(' ') {
        return Err(format!(
            "the label {label:?} is not possible: a FAT label has at most {LABEL} letters, digits or spaces"
        ));
    }
    let mut stored = [b' '; LABEL];
    stored[..label.len()].copy_from_slice(label.to_ascii_uppercase().as_bytes());
    Ok(if label.is_empty() { *b"NO NAME    " } else { stored })
}

/// Returns the smallest size in bytes with enough space for the files: a multiple of 1 MiB.
pub(super) fn smallest(root: &Dir, sector: u64) -> Option<u64> {
    const STEP: u64 = 1 << 20;
    let mut size =
        root.clusters_below(sector).saturating_mul(sector).next_multiple_of(STEP).max(STEP);
    loop {
        let geometry = Geometry::new(size, sector, root.slots() + 1)?;
        let needs = geometry.needs(root);
        if needs <= geometry.clusters {
            return Some(size);
        }
        let more = (needs - geometry.clusters) * geometry.cluster_bytes();
        size += more.next_multiple_of(STEP);
    }
}

/// Checks that a file system of `size` bytes has enough space for the files of `root`.
///
/// # Errors
/// Fails if the size is not possible or too small.
pub(super) fn check(root: &Dir, size: u64, sector: u64) -> Result<(), Failure> {
    geometry(root, size, sector).map(|_| ())
}

fn geometry(root: &Dir, size: u64, sector: u64) -> Result<Geometry, Failure> {
    let Some(geometry) = Geometry::new(size, sector, root.slots() + 1) else {
        return Err(Failure::usage(format!(
            "a FAT file system cannot have {size} bytes: write another size, or min"
        )));
    };
    if geometry.needs(root) > geometry.clusters {
        let enough = smallest(root, sector).unwrap_or(u64::MAX) >> 20;
        return Err(Failure::no_space(format!(
            "FAT has no space for the files: a size of {enough}M, or min, is enough"
        )));
    }
    Ok(geometry)
}

/// Writes a file system of `size` bytes with the files of `root`.
///
/// # Errors
/// The errors of [`check`]; fails if a file cannot be read, and if the device fails.
pub(super) fn make(
    out: &mut Out<'_>,
    root: &mut Dir,
    [size, sector]: [u64; 2],
    identity: &Identity,
    stop: &Stop,
) -> Result<(), Failure> {
    let geometry = geometry(root, size, sector)?;
    let mut writer = Writer { out, geometry, stop, table: Vec::new(), next: 2 };
    writer.table.resize((geometry.table * sector) as usize, 0);
    writer.set(0, 0x0FFF_FFF8);
    writer.set(1, 0x0FFF_FFFF);
    writer.directory(root, identity)?;
    writer.finish(identity)
}

/// Returns the failure for an error while the disk is written.
#[expect(clippy::needless_pass_by_value, reason = "the argument of map_err")]
fn failed(error: ironmap::Error) -> Failure {
    Failure::at("the partition", &error)
}

/// A file system that is being written.
struct Writer<'a, 'b> {
    out: &'a mut Out<'b>,
    geometry: Geometry,
    stop: &'a Stop,
    table: Vec<u8>,
    /// The first free cluster.
    next: u32,
}

impl Writer<'_, '_> {
    /// Writes the root directory and everything below it.
    fn directory(&mut self, root: &mut Dir, identity: &Identity) -> Result<(), Failure> {
        if self.geometry.kind == Kind::Fat32 {
            root.place = self.take(root.clusters(self.geometry.cluster_bytes()));
        }
        self.place(root);
        let mut bytes = Vec::new();
        if identity.label != *b"NO NAME    " {
            let (time, clusters) = (identity.time, Clusters::default());
            bytes.extend(entry(&identity.label, VOLUME_LABEL, time, clusters.first, 0));
        }
        self.entries(root, &mut bytes);
        match root.place.count {
            0 => {
                bytes.resize((self.geometry.root_slots * 32) as usize, 0);
                self.out.put(self.geometry.root_at(), &bytes).map_err(failed)?;
            }
            _ => self.write(root.place, &bytes)?,
        }
        self.below(root, 0)
    }

    /// Assigns clusters to everything below a directory.
    fn place(&mut self, dir: &mut Dir) {
        let cluster = self.geometry.cluster_bytes();
        for entry in dir.entries.values_mut() {
            match &mut entry.node {
                Node::Dir(below) => {
                    below.place = self.take(below.clusters(cluster));
                    self.place(below);
                }
                Node::File(file) => file.place = self.take(u64::from(file.size).div_ceil(cluster)),
            }
        }
    }

    /// Takes the next clusters, and chains them in the table. The caller has checked that there are enough.
    fn take(&mut self, count: u64) -> Clusters {
        let place = Clusters { first: if count == 0 { 0 } else { self.next }, count: count as u32 };
        for cluster in self.next..self.next + place.count {
            let last = cluster + 1 == self.next + place.count;
            self.set(cluster, if last { 0x0FFF_FFFF } else { cluster + 1 });
        }
        self.next += place.count;
        place
    }

    /// Sets an entry of the table.
    fn set(&mut self, cluster: u32, value: u32) {
        let index = cluster as usize;
        match self.geometry.kind {
            Kind::Fat12 => {
                let (at, odd) = (index + index / 2, index % 2 == 1);
                let (value, old) = (value as u16 & 0xFFF, [self.table[at], self.table[at + 1]]);
                let old = u16::from_le_bytes(old);
                let new = if odd { old & 0xF | value << 4 } else { old & 0xF000 | value };
                self.table[at..at + 2].copy_from_slice(&new.to_le_bytes());
            }
            Kind::Fat16 => {
                self.table[2 * index..][..2].copy_from_slice(&(value as u16).to_le_bytes());
            }
            Kind::Fat32 => self.table[4 * index..][..4].copy_from_slice(&value.to_le_bytes()),
        }
    }

    /// Appends the entries of a directory.
    fn entries(&self, dir: &Dir, bytes: &mut Vec<u8>) {
        let mut shorts = Shorts::default();
        // Valid short names must stay unchanged, so they are assigned before all other short names.
        let exact: Vec<_> = dir.entries.values().map(|entry| shorts.exact(&entry.name)).collect();
        for (Entry { name, time, node }, exact) in dir.entries.values().zip(exact) {
            let short = exact.unwrap_or_else(|| {
                let short = shorts.make(name);
                bytes.extend(long(name, &short).as_flattened());
                short
            });
            bytes.extend(match node {
                Node::Dir(below) => entry(&short, DIRECTORY, *time, below.place.first, 0),
                Node::File(file) => entry(&short, ARCHIVE, *time, file.place.first, file.size),
            });
        }
    }

    /// Writes the directories and files below a directory. `own` is the first cluster of the directory, or 0 for the root directory.
    fn below(&mut self, dir: &Dir, own: u32) -> Result<(), Failure> {
        for Entry { time, node, .. } in dir.entries.values() {
            self.stop.check()?;
            match node {
                Node::Dir(below) => {
                    let mut bytes = Vec::new();
                    let first = below.place.first;
                    for (name, cluster) in [(b".          ", first), (b"..         ", own)] {
                        bytes.extend(entry(name, DIRECTORY, *time, cluster, 0));
                    }
                    self.entries(below, &mut bytes);
                    self.write(below.place, &bytes)?;
                    self.below(below, first)?;
                }
                Node::File(file) => self.file(file)?,
            }
        }
        Ok(())
    }

    /// Writes the clusters of a directory.
    fn write(&mut self, place: Clusters, bytes: &[u8]) -> Result<(), Failure> {
        let mut content = bytes.to_vec();
        content.resize((u64::from(place.count) * self.geometry.cluster_bytes()) as usize, 0);
        self.out.put(self.geometry.at(place.first), &content).map_err(failed)
    }

    /// Copies a file of the host.
    fn file(&mut self, file: &HostFile) -> Result<(), Failure> {
        if file.size == 0 {
            return Ok(());
        }
        let of_host = |error| Failure::host(file.path.display(), error);
        let mut source = File::open(&file.path).map_err(of_host)?;
        let (cluster, mut at) = (self.geometry.cluster_bytes(), self.geometry.at(file.place.first));
        let mut left = u64::from(file.size);
        let mut chunk = vec![0; (1_usize << 20).next_multiple_of(cluster as usize)];
        while left > 0 {
            self.stop.check()?;
            let len = left.min(chunk.len() as u64);
            source.read_exact(&mut chunk[..len as usize]).map_err(of_host)?;
            let whole = len.next_multiple_of(cluster);
            chunk[len as usize..whole as usize].fill(0);
            self.out.put(at, &chunk[..whole as usize]).map_err(failed)?;
            (left, at) = (left - len, at + whole);
        }
        Ok(())
    }

    /// Writes the two tables, and then the boot sector. Only this last write makes the range a FAT file system.
    fn finish(self, identity: &Identity) -> Result<(), Failure> {
        let Geometry { sector, reserved, table, .. } = self.geometry;
        for copy in 0..2 {
            self.out.put((reserved + copy * table) * sector, &self.table).map_err(failed)?;
        }
        let mut sectors = vec![0; (reserved * sector) as usize];
        let boot = self.geometry.boot(identity);
        sectors[..512].copy_from_slice(&boot);
        if self.geometry.kind == Kind::Fat32 {
            let used = self.next - 2;
            let info = info(self.geometry.clusters as u32 - used, self.next);
            for first in [0, BACKUP] {
                let at = |number: u16| usize::from(first + number) * sector as usize;
                sectors[at(0)..at(0) + 512].copy_from_slice(&boot);
                sectors[at(INFO)..at(INFO) + 512].copy_from_slice(&info);
            }
        }
        self.out.put(0, &sectors).map_err(failed)
    }
}

/// Returns a directory entry.
fn entry(name: &Short, attributes: u8, time: i64, cluster: u32, size: u32) -> [u8; 32] {
    let [time, date] = time_and_date(time);
    let mut entry = [0; 32];
    entry[..11].copy_from_slice(name);
    entry[11] = attributes;
    // FAT stores a time and a date for the creation, but only a date for the last access.
    for (at, value) in [(14, time), (16, date), (18, date), (22, time), (24, date)] {
        entry[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    entry[20..22].copy_from_slice(&((cluster >> 16) as u16).to_le_bytes());
    entry[26..28].copy_from_slice(&(cluster as u16).to_le_bytes());
    entry[28..].copy_from_slice(&size.to_le_bytes());
    entry
}

impl Geometry {
    fn boot(&self, identity: &Identity) -> [u8; 512] {
        let mut boot = [0; 512];
        let mut put = |at: usize, bytes: &[u8]| boot[at..at + bytes.len()].copy_from_slice(bytes);
        let is_32 = self.kind == Kind::Fat32;
        put(0, if is_32 { &[0xEB, 0x58, 0x90] } else { &[0xEB, 0x3C, 0x90] });
        put(3, b"IRONMAP ");
        put(11, &(self.sector as u16).to_le_bytes());
        put(13, &[self.cluster as u8]);
        put(14, &(self.reserved as u16).to_le_bytes());
        // The number of tables is two.
        put(16, &[2]);
        put(17, &(self.root_slots as u16).to_le_bytes());
        let total = self.total as u32;
        match u16::try_from(total) {
            Ok(total) if !is_32 => put(19, &total.to_le_bytes()),
            _ => put(32, &total.to_le_bytes()),
        }
        // The medium is a hard disk, with 63 sectors and 255 heads.
        put(21, &[0xF8]);
        put(24, &63_u16.to_le_bytes());
        put(26, &255_u16.to_le_bytes());
        put(28, &identity.hidden.to_le_bytes());
        let extended = if is_32 {
            put(36, &(self.table as u32).to_le_bytes());
            put(44, &2_u32.to_le_bytes());
            put(48, &INFO.to_le_bytes());
            put(50, &BACKUP.to_le_bytes());
            64
        } else {
            put(22, &(self.table as u16).to_le_bytes());
            36
        };
        // The drive number of the BIOS, and the signature of the three fields that follow.
        put(extended, &[0x80, 0, 0x29]);
        put(extended + 3, &identity.serial.to_le_bytes());
        put(extended + 7, &identity.label);
        put(extended + 18, format!("FAT{}   ", self.kind.bits()).as_bytes());
        put(510, &[0x55, 0xAA]);
        boot
    }
}

/// The sector of FAT32 that contains the number of free clusters and the first cluster that may be free.
fn info(free: u32, next: u32) -> [u8; 512] {
    let mut info = [0; 512];
    for (at, value) in
        [(0, 0x4161_5252), (484, 0x6141_7272), (488, free), (492, next), (508, 0xAA55_0000)]
    {
        info[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
    }
    info
}
