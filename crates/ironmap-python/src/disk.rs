//! Makes whole disks and hash trees of dm-verity. The module `_disk` in Python contains the public functions.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use ironmap_image::disk::{Disk, DiskPart, MadeDisk};
use ironmap_image::verity::{MadeTree, Parameters, Tree};
use ironmap_image::{Failure, Stop};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::of_image;
use crate::job::{Functions, Shown, run};

/// The items of the dictionary that describes a new disk.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Description {
    parts: Vec<String>,
    size: Option<u64>,
    sector_size: Option<u32>,
    guid: Option<[u8; 16]>,
    seed: Option<String>,
    source_date_epoch: Option<i64>,
    force: bool,
}

/// The type, GUID, first byte, length, name, content and root hash of a new partition.
type Part = ([u8; 16], [u8; 16], u64, u64, String, &'static str, Option<[u8; 32]>);
/// The size, sector size, GUID and partitions of a new disk.
type Fields = (u64, u64, [u8; 16], Vec<Part>);

impl Description {
    fn disk(self, stop: &Stop) -> PyResult<Disk> {
        let mut disk = Disk::new().force(self.force).stop(stop);
        for text in &self.parts {
            let part = DiskPart::parse(text);
            let part = part.map_err(|failure| PyValueError::new_err(format!("{text}: {failure}")));
            disk = disk.part(part?);
        }
        if let Some(bytes) = self.size {
            disk = disk.size(bytes);
        }
        if let Some(bytes) = self.sector_size {
            disk = disk.sector_size(bytes);
        }
        if let Some(guid) = self.guid {
            disk = disk.guid(guid);
        }
        if let Some(seed) = self.seed {
            disk = disk.seed(seed);
        }
        if let Some(seconds) = self.source_date_epoch {
            disk = disk.source_date_epoch(seconds);
        }
        Ok(disk)
    }
}

fn fields(made: MadeDisk) -> Fields {
    let part = |part: ironmap_image::disk::MadePart| {
        let (label, content, root) = (part.label, part.content, part.root_hash);
        (part.kind, part.guid, part.start, part.len, label, content, root)
    };
    (made.size, made.sector, made.guid, made.parts.into_iter().map(part).collect())
}

/// Makes a disk.
#[pyfunction]
pub(crate) fn build_disk(
    py: Python<'_>,
    disk: &[u8],
    description: Description,
    progress: Option<Py<PyAny>>,
    on_message: Option<Py<PyAny>>,
) -> PyResult<Fields> {
    let functions = Functions { readers: Vec::new(), progress, on_message };
    let (stop, to_python) = (Stop::default(), functions.progress.is_some());
    let (to_make, target) = (description.disk(&stop)?, OsString::from_vec(disk.to_vec()));
    let made = run(py, &functions, &stop, move |caller| {
        let messages = caller.clone();
        to_make
            .on_message(move |text| messages.message(text))
            .progress(Arc::new(Shown::new(caller, to_python)))
            .build(target)
    })?;
    made.map(fields).map_err(|failure| of_image(py, &failure, disk))
}

/// The items of the dictionary that describes a new hash tree.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct TreeDescription {
    salt: Option<Vec<u8>>,
    uuid: Option<[u8; 16]>,
    data_block_size: u32,
    hash_block_size: u32,
    source_date_epoch: Option<i64>,
    force: bool,
}

impl TreeDescription {
    fn tree(self, stop: &Stop) -> Tree {
        let tree = Tree::new().data_block_size(self.data_block_size);
        let mut tree = tree.hash_block_size(self.hash_block_size).force(self.force).stop(stop);
        if let Some(salt) = self.salt {
            tree = tree.salt(salt);
        }
        if let Some(uuid) = self.uuid {
            tree = tree.uuid(uuid);
        }
        if let Some(seconds) = self.source_date_epoch {
            tree = tree.source_date_epoch(seconds);
        }
        tree
    }
}

/// The salt, UUID, number of data blocks, sizes of data blocks and hash blocks, and length of a hash tree.
type TreeFields = (Vec<u8>, [u8; 16], u64, u32, u32, u64);

fn tree_fields(parameters: Parameters) -> TreeFields {
    let size = parameters.tree_size();
    let Parameters { data_block, hash_block, data_blocks, salt, uuid } = parameters;
    (salt, uuid, data_blocks, data_block, hash_block, size)
}

fn without_functions() -> Functions {
    Functions { readers: Vec::new(), progress: None, on_message: None }
}

/// Makes a hash tree, and returns its root hash, its position and its parameters.
#[pyfunction]
pub(crate) fn make_verity(
    py: Python<'_>,
    data: &[u8],
    hash: Option<Vec<u8>>,
    description: TreeDescription,
) -> PyResult<([u8; 32], u64, TreeFields)> {
    let stop = Stop::default();
    let (tree, source) = (description.tree(&stop), OsString::from_vec(data.to_vec()));
    let hash = hash.map(OsString::from_vec);
    let made = run(py, &without_functions(), &stop, move |_| tree.make(source, hash.as_deref()))?;
    let fields = |made: MadeTree| (made.root, made.offset, tree_fields(made.parameters));
    made.map(fields).map_err(|failure| of_image(py, &failure, data))
}

/// Verifies data with their hash tree and the root hash, and returns the parameters of the tree.
#[pyfunction]
pub(crate) fn check_verity(
    py: Python<'_>,
    data: &[u8],
    hash: Option<Vec<u8>>,
    root: [u8; 32],
) -> PyResult<TreeFields> {
    let (source, hash) = (OsString::from_vec(data.to_vec()), hash.map(OsString::from_vec));
    let checked =
        run(py, &without_functions(), &Stop::default(), move |_| -> Result<_, Failure> {
            Tree::verify(source, hash.as_deref(), &root)
        })?;
    checked.map(tree_fields).map_err(|failure| of_image(py, &failure, data))
}
