//! Makes and verifies hash trees at locations: files, devices and partitions.

use std::ffi::OsStr;
use std::ops::Range;
use std::sync::Arc;

use ironmap::device::Device;
use ironmap::location::{LocationOptions, Site};
use ironmap::{Engine, Error, ErrorKind, Location};

use super::{Checked, Hash, Parameters, Place, check, find, identity, make, unless_stopped};
use crate::context::Context;
use crate::failure::{Failure, named};
use crate::image::Callbacks;
use crate::opening::Opening;
use crate::report::Report;
use crate::room::{self, Overwrite, Room};
use crate::stop::Stop;

/// Describes a new hash tree. [`make`](Self::make) writes it.
///
/// ```
/// use ironmap_image::Image;
/// use ironmap_image::verity::Tree;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let (root, hashes) = (dir.path().join("root.img"), dir.path().join("root.verity"));
/// Image::ext4().size(16 << 20).build(&root)?;
/// let made = Tree::new().make(&root, Some(hashes.as_os_str()))?;
/// Tree::verify(&root, Some(hashes.as_os_str()), &made.root)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Tree {
    data_block: u32,
    hash_block: u32,
    salt: Option<Vec<u8>>,
    uuid: Option<[u8; 16]>,
    overwrite: Overwrite,
    source_date: Option<i64>,
    stop: Stop,
}

/// A hash tree that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MadeTree {
    /// The root hash.
    pub root: Hash,
    /// The position of the superblock on the device of the tree, in bytes.
    pub offset: u64,
    /// The parameters in the superblock.
    pub parameters: Parameters,
}

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

impl Tree {
    /// Creates the description of a tree with blocks of 4096 bytes, and with a random salt and UUID.
    #[must_use]
    pub fn new() -> Self {
        let (data_block, hash_block, stop) = (4096, 4096, Stop::default());
        let (salt, uuid, overwrite, source_date) = (None, None, Overwrite::Unknown, None);
        Self { data_block, hash_block, salt, uuid, overwrite, source_date, stop }
    }

    /// Sets the size of a data block: a power of two from 512 bytes to 512 KiB.
    #[must_use]
    pub fn data_block_size(mut self, bytes: u32) -> Self {
        self.data_block = bytes;
        self
    }

    /// Sets the size of a hash block: a power of two from 512 bytes to 512 KiB.
    #[must_use]
    pub fn hash_block_size(mut self, bytes: u32) -> Self {
        self.hash_block = bytes;
        self
    }

    /// Sets the salt: at most 256 bytes. It may be empty.
    #[must_use]
    pub fn salt(mut self, salt: impl Into<Vec<u8>>) -> Self {
        self.salt = Some(salt.into());
        self
    }

    /// Sets the UUID of the tree.
    #[must_use]
    pub fn uuid(mut self, uuid: [u8; 16]) -> Self {
        self.uuid = Some(uuid);
        self
    }

    /// Permits [`make`](Self::make) to overwrite known content at the place of the tree. A member of an MD array or of an LVM volume group
    /// is always refused, with `EBUSY`.
    #[must_use]
    pub fn force(self, force: bool) -> Self {
        self.overwrite(force.into())
    }

    /// Sets the content that may be overwritten. Unlike [`force`](Self::force), this can also permit overwriting members.
    #[must_use]
    pub fn overwrite(mut self, overwrite: Overwrite) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Sets the time of a reproducible build, in seconds since 1970 (`SOURCE_DATE_EPOCH`). The salt and the UUID are then derived from the
    /// time and the size of the data.
    #[must_use]
    pub fn source_date_epoch(mut self, seconds: i64) -> Self {
        self.source_date = Some(seconds);
        self
    }

    /// Sets the request to end the work early. Another thread can make this request.
    #[must_use]
    pub fn stop(mut self, stop: &Stop) -> Self {
        self.stop = stop.clone();
        self
    }

    /// Makes the tree of the data at a location, and writes it to the location `hash`: a device, a partition, or an image file, which is
    /// made if it does not exist. Without `hash`, the tree is appended to the data, which must be an image file.
    ///
    /// # Errors
    /// The tree cannot be made. A new image file is then removed.
    pub fn make(self, data: impl AsRef<OsStr>, hash: Option<&OsStr>) -> Result<MadeTree, Failure> {
        let (data, hash) = locations(data.as_ref(), hash)?;
        let report = report(self.stop.clone(), self.source_date);
        self.make_with(&data, hash.as_ref(), &report)
    }

    /// Makes the tree for a caller with its own [`Context`], which provides the time and the request to stop.
    ///
    /// # Errors
    /// The errors of [`make`](Self::make).
    pub fn make_with(
        &self,
        data: &Location,
        hash: Option<&Location>,
        report: &Report,
    ) -> Result<MadeTree, Failure> {
        let job = Job { tree: self, data, report };
        match (data, hash) {
            (_, None) => job.appended(),
            (Location::Plain(from), Some(Location::Plain(to))) if from.shares_device(to) => {
                job.in_parts(from, to)
            }
            (_, Some(hash)) => report.context().end_aside(job.separate(hash)),
        }
    }

    /// Verifies each block of the data at a location with its hash tree and the root hash. Without `hash`, the tree is at the end of the data.
    /// Returns the parameters of the tree.
    ///
    /// # Errors
    /// [`Reason::Corrupt`](crate::Reason::Corrupt) if a block does not match; the message names the block. Also fails if the data or the
    /// tree cannot be read.
    pub fn verify(
        data: impl AsRef<OsStr>,
        hash: Option<&OsStr>,
        root: &Hash,
    ) -> Result<Parameters, Failure> {
        let (data, hash) = locations(data.as_ref(), hash)?;
        Self::verify_with(&data, hash.as_ref(), root, &report(Stop::default(), None))
    }

    /// Verifies data for a caller with its own [`Context`].
    ///
    /// # Errors
    /// The errors of [`verify`](Self::verify).
    pub fn verify_with(
        data: &Location,
        hash: Option<&Location>,
        root: &Hash,
        report: &Report,
    ) -> Result<Parameters, Failure> {
        let device = open(data, false, report)?;
        let opened = hash.map(|hash| open(hash, false, report)).transpose()?;
        let of_hashes = hash.unwrap_or(data);
        let hashes = match &opened {
            Some(device) => Place { device: &**device, start: 0 },
            None => {
                let start = find(&*device).map_err(|error| failed(data, error))?;
                let start = start.ok_or_else(|| {
                    let what = "there is no hash tree at its end: name HASH, or make a tree with ironmap verity make";
                    Failure::open(&Error::new(ErrorKind::UnknownFormat, what).at(data))
                })?;
                Place { device: &*device, start }
            }
        };
        let parameters = Parameters::read(hashes).map_err(|error| failed(of_hashes, error))?;
        let (place, stop) = (Place { device: &*device, start: 0 }, report.stop());
        let checked = check(place, hashes, root, &mut |_| unless_stopped(stop));
        let checked = checked.map_err(|error| match error.kind() {
            ErrorKind::InvalidInput => {
                Failure::corrupt(data, "the data are shorter than the hash tree says")
            }
            _ => stop.cause(failed(data, error)),
        })?;
        let bad = |place: &Location, what: String| Err(Failure::corrupt(place, &what));
        match checked {
            Checked::Good => Ok(parameters),
            Checked::OtherRoot { found } => {
                let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
                bad(
                    of_hashes,
                    format!(
                        "the root hash is {found}: the tree belongs to other data, or its top block is damaged"
                    ),
                )
            }
            Checked::HashBlock { at } => bad(
                of_hashes,
                format!("the hash block at byte {at} does not match the hash in the level above"),
            ),
            Checked::DataBlock { number, at } => {
                bad(data, format!("the data block {number} (at byte {at}) does not match its hash"))
            }
        }
    }
}

/// The work on one tree.
struct Job<'a> {
    tree: &'a Tree,
    data: &'a Location,
    report: &'a Report,
}

impl Job<'_> {
    /// Returns the parameters of the tree of `len` bytes of data.
    fn parameters(&self, len: u64) -> Result<Parameters, Failure> {
        let Tree { data_block, hash_block, .. } = *self.tree;
        let seed = self.report.context().source_date()?.map(|date| date.to_string());
        let (uuid, salt) = identity(seed, len)?;
        let data_blocks = len / u64::from(data_block.max(1));
        if data_blocks * u64::from(data_block) != len {
            return Err(Failure::usage(format!(
                "{}: {len} bytes are not a multiple of the data block size, {data_block} bytes",
                self.data
            )));
        }
        let salt = self.tree.salt.clone().unwrap_or_else(|| salt.to_vec());
        let uuid = self.tree.uuid.unwrap_or(uuid);
        let parameters = Parameters { data_block, hash_block, data_blocks, salt, uuid };
        parameters.validate().map_err(|error| self.refused(error))?;
        Ok(parameters)
    }

    /// Writes the tree to a location that is not on the device of the data.
    fn separate(&self, hash: &Location) -> Result<MadeTree, Failure> {
        let data = open(self.data, false, self.report)?;
        let parameters = self.parameters(data.size())?;
        let context = self.report.context();
        let _held = context.hold(hash).map_err(|error| failed(hash, error))?;
        let room = match room::file_of(hash) {
            Some(file) => {
                let size = parameters.tree_size();
                room::make(hash, file, size, self.tree.overwrite, context)?
            }
            None => Room::Old,
        };
        let written = open(hash, true, self.report).and_then(|device| {
            let (from, to) = ((&*data, 0..data.size()), (&device, 0..device.size()));
            self.write_to(hash, from, to, &parameters)
        });
        match written {
            Ok(root) => room.keep().map(|()| MadeTree { root, offset: 0, parameters }),
            Err(failure) => {
                room.undo();
                Err(failure)
            }
        }
    }

    /// Writes the tree to another part of the device or image of the data.
    fn in_parts(&self, data: &Site, hash: &Site) -> Result<MadeTree, Failure> {
        let opened = hash.open_with(data, &options());
        let opened = opened.map_err(|error| failed(self.data, error))?;
        self.report.context().tell_faults(self.data, &opened.faults);
        let device = &opened.device;
        let parameters = self.parameters(opened.read.end - opened.read.start)?;
        let (from, to) = ((&**device, opened.read), (device, opened.written));
        let root = self.write_to(&Location::Plain(hash.clone()), from, to, &parameters)?;
        Ok(MadeTree { root, offset: 0, parameters })
    }

    /// Writes the hash tree of a range of a device to a target range. Fails if the target range is too short, or if its content must not be
    /// overwritten.
    fn write_to(
        &self,
        hash: &Location,
        (data, read): (&dyn Device, Range<u64>),
        (device, range): (&Arc<dyn Device>, Range<u64>),
        parameters: &Parameters,
    ) -> Result<Hash, Failure> {
        let len = range.end - range.start;
        room::check_range(device, &range, hash, self.tree.overwrite)?;
        if len < parameters.tree_size() {
            return Err(Failure::no_space(format!(
                "{hash}: the hash tree needs {} bytes, but there are only {len}",
                parameters.tree_size()
            )));
        }
        let (from, to) = (
            Place { device: data, start: read.start },
            Place { device: &**device, start: range.start },
        );
        self.write(from, to, parameters)
    }

    /// Refuses to append a tree to data that end with a tree.
    fn refuse_second(&self, data: &dyn Device) -> Result<(), Failure> {
        if let Some(at) = find(data).map_err(|error| failed(self.data, error))? {
            return Err(Failure::usage(format!(
                "{}: there is already a hash tree at byte {at}: truncate -s {at} removes it",
                self.data
            )));
        }
        Ok(())
    }

    /// Appends the tree to the data.
    fn appended(&self) -> Result<MadeTree, Failure> {
        let held = self.report.context().hold(self.data);
        let _held = held.map_err(|error| failed(self.data, error))?;
        let data = open(self.data, true, self.report)?;
        self.refuse_second(&*data)?;
        let parameters = self.parameters(data.size())?;
        let path = self.data.whole_file().filter(|path| path.is_file());
        let Some(path) = path else {
            return Err(Failure::usage(format!(
                "{}: a hash tree can be appended only to an image file: name a HASH location for the tree",
                self.data
            )));
        };
        let offset = data.size().next_multiple_of(u64::from(parameters.hash_block));
        drop(data);
        let held_file = self.report.context().held_file(self.data);
        let extended = room::extend(path, offset + parameters.tree_size(), held_file)?;
        let written = open(self.data, true, self.report).and_then(|device| {
            let [data, hashes] = [0, offset].map(|start| Place { device: &*device, start });
            self.write(data, hashes, &parameters)
        });
        if written.is_err() {
            extended.undo();
        }
        written.map(|root| MadeTree { root, offset, parameters })
    }

    fn write(
        &self,
        data: Place<'_>,
        hashes: Place<'_>,
        parameters: &Parameters,
    ) -> Result<Hash, Failure> {
        let stop = self.report.stop();
        let made = make(data, hashes, parameters, &mut |_| unless_stopped(stop));
        made.map_err(|error| stop.cause(self.refused(error)))
    }

    fn refused(&self, error: Error) -> Failure {
        match error.kind() {
            ErrorKind::InvalidInput => Failure::usage(error),
            _ => failed(self.data, error),
        }
    }
}

fn locations(data: &OsStr, hash: Option<&OsStr>) -> Result<(Location, Option<Location>), Failure> {
    let parse = |text: &OsStr| Location::parse(text).map_err(|error| Failure::usage(&error));
    Ok((parse(data)?, hash.map(parse).transpose()?))
}

fn report(stop: Stop, source_date: Option<i64>) -> Report {
    let callbacks = Box::new(Callbacks::default());
    Report::new(Context::new(callbacks, stop, Opening::default(), Ok(source_date)))
}

fn open(location: &Location, write: bool, report: &Report) -> Result<Arc<dyn Device>, Failure> {
    let opened = report.context().open_device(location, &options().write(write));
    opened.map(|opened| opened.device).map_err(|error| failed(location, error))
}

fn options() -> LocationOptions {
    // The smallest hash block has 512 bytes.
    LocationOptions::new().engine(Engine::Psync).block_size(512)
}

fn failed(location: &Location, error: Error) -> Failure {
    Failure::open(&named(location, error))
}
