//! Makes vectors around random centres, and a disk index of these vectors. The parameters of the index are those of DiskANN's benchmarks.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use diskann::ANNResult;
use diskann::graph::config;
use diskann::utils::ONE;
use diskann_disk::build::builder::build::DiskIndexBuilder;
use diskann_disk::data_model::AdHoc;
use diskann_disk::disk_index_build_parameter::{DISK_SECTOR_LEN, MemoryBudget, NumPQChunks};
use diskann_disk::storage::DiskIndexWriter;
use diskann_disk::{DiskIndexBuildParameters, QuantizationType};
use diskann_providers::model::IndexConfiguration;
use diskann_providers::storage::FileStorageProvider;
use diskann_vector::distance::Metric;

/// The number of dimensions of a vector.
pub const DIM: usize = 128;

/// The parameters of the index, from `example/disk-index.json` in diskann-benchmark 0.61. The index in that file also has 128 dimensions.
const MAX_DEGREE: usize = 32;
const L_BUILD: usize = 50;
/// The number of chunks of a vector. A chunk has four dimensions, as in `perf_test_inputs` of diskann-benchmark.
const PQ_CHUNKS: usize = DIM / 4;
const BUILD_RAM_GIB: f64 = 4.0;
const BUILD_THREADS: usize = 2;

/// The standard deviation of the vectors around their centre. The centres are in a cube with edges of length 1.
const SPREAD: f32 = 0.25;
const CENTRES: u64 = 1000;

/// A generator of random numbers (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number between 0 and 1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// Returns a nearly normal random number with mean 0 and variance 1. It is computed from the sum of twelve uniform numbers.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }
}

/// Makes `count` vectors of [`DIM`] dimensions, one after the other. The seed determines the centres, and `stream` determines the vectors
/// around them.
#[must_use]
pub fn vectors(seed: u64, stream: u64, count: usize) -> Vec<f32> {
    let mut centres = Random::new(seed);
    let centres: Vec<f32> = (0..CENTRES as usize * DIM).map(|_| centres.unit()).collect();
    let mut random = Random::new(seed ^ stream.wrapping_add(1).rotate_left(32));
    let mut vectors = Vec::with_capacity(count * DIM);
    for _ in 0..count {
        let centre = (random.next() % CENTRES) as usize * DIM;
        let around = centres[centre..centre + DIM].iter();
        vectors.extend(around.map(|at| at + SPREAD * random.normal()));
    }
    vectors
}

/// Makes the vectors of the index.
#[must_use]
pub fn base(seed: u64, count: usize) -> Vec<f32> {
    vectors(seed, 0, count)
}

/// Makes the query vectors. They have the same distribution as the vectors of the index.
#[must_use]
pub fn queries(seed: u64, count: usize) -> Vec<f32> {
    vectors(seed, 1, count)
}

/// Returns the prefix of the index's files in `dir`. If the index of `count` vectors does not exist yet, builds it.
///
/// # Errors
/// The errors of the builder, and of the file system.
pub fn build(dir: &Path, seed: u64, count: usize) -> ANNResult<String> {
    let name = format!("n{count}-d{DIM}-r{MAX_DEGREE}-l{L_BUILD}-pq{PQ_CHUNKS}-seed{seed}");
    let place = dir.join(name);
    if !place.is_dir() {
        // The index is built in a directory with another name, which is renamed at the end. So an interrupted build leaves no incomplete
        // index.
        let partial = place.with_extension("partial");
        fs::create_dir_all(&partial)?;
        build_in(&partial, &base(seed, count))?;
        fs::rename(&partial, &place)?;
    }
    Ok(prefix(&place))
}

fn prefix(dir: &Path) -> String {
    dir.join("index").to_string_lossy().into_owned()
}

/// Builds an index in the same way as diskann-benchmark.
fn build_in(dir: &Path, vectors: &[f32]) -> ANNResult<()> {
    let data = write(dir, vectors)?;
    let degree = config::MaxDegree::default_slack();
    let metric = Metric::L2;
    let build = config::Builder::new_with(MAX_DEGREE, degree, L_BUILD, metric.into(), |build| {
        build.saturate_after_prune(true);
    });
    let count = vectors.len() / DIM;
    let configuration =
        IndexConfiguration::new(metric, DIM, count, ONE, BUILD_THREADS, build.build()?)
            .with_pseudo_rng();
    let parameters = DiskIndexBuildParameters::new(
        MemoryBudget::try_from_gb(BUILD_RAM_GIB)?,
        QuantizationType::FP,
        NumPQChunks::new_with(PQ_CHUNKS, DIM)?,
    );
    let data = data.to_string_lossy().into_owned();
    let writer = DiskIndexWriter::new(data.clone(), prefix(dir), None, DISK_SECTOR_LEN)?;
    DiskIndexBuilder::<AdHoc<f32>, _>::new(
        &FileStorageProvider,
        parameters,
        configuration,
        writer,
    )?
    .build()?;
    Ok(fs::remove_file(data)?)
}

/// Writes vectors in DiskANN's format: first the number of vectors, then the number of dimensions, then the vectors.
fn write(dir: &Path, vectors: &[f32]) -> io::Result<PathBuf> {
    let path = dir.join("data.fbin");
    let mut file = BufWriter::new(File::create(&path)?);
    for number in [vectors.len() / DIM, DIM] {
        file.write_all(&(number as u32).to_le_bytes())?;
    }
    for number in vectors {
        file.write_all(&number.to_le_bytes())?;
    }
    file.flush()?;
    Ok(path)
}
