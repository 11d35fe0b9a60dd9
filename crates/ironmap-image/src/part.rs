//! Temporary names of files that replace another file.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A temporary name in the same directory. It is random, because processes of containers or machines that share the directory may have the
/// same PID.
pub fn part_name() -> String {
    // Each `RandomState` has different random keys, so the hash of an empty input is a random number.
    format!(".ironmap-{:016x}.part", RandomState::new().build_hasher().finish())
}
