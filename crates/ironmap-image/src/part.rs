//! Temporary names for new files that will replace existing files.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns a temporary name for the same directory. The name is random, because a process ID is not sufficient: processes in several
/// containers or machines that share the directory may have the same process ID.
pub fn part_name() -> String {
    // Each `RandomState` has different random keys, so the hash of an empty input is a random number.
    format!(".ironmap-{:016x}.part", RandomState::new().build_hasher().finish())
}
