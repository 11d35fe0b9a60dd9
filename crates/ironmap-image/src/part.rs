//! Files that are written beside the one that they replace.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A name for a file that is written beside another one. It is random: processes of containers and machines that share a directory may have one number.
pub fn part_name() -> String {
    // Each state has other keys.
    format!(".ironmap-{:016x}.part", RandomState::new().build_hasher().finish())
}
