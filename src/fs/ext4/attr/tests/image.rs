//! Volumes with files for the tests of attributes.

use crate::fs::ext4::for_tests::Image;

impl Image {
    /// A volume with `files`, a directory and a symbolic link in its root. The content of each file is the file's name.
    pub(super) fn with_files(options: &str, files: &[&str]) -> Self {
        Self::with_tree(options, "32M", |root| {
            std::fs::create_dir(root.join("dir")).unwrap();
            std::os::unix::fs::symlink("nowhere", root.join("link")).unwrap();
            for file in files {
                std::fs::write(root.join(file), file).unwrap();
            }
        })
    }
}

/// A random generator whose numbers depend only on the seed.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    /// A random number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        // The generator is splitmix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((word ^ word >> 31) % end as u64) as usize
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}
