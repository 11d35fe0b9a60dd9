//! The features of a new volume: a set of features that users edit by name, and the rules between features.

use crate::error::{Error, Result};
use crate::fs::ext4::{Compat, Incompat, RoCompat};

/// The features of a volume, as three bit masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The compatible features: an implementation that does not know them can still read and write the volume.
    pub compat: Compat,
    /// The features that every implementation must support to read or write the volume.
    pub incompat: Incompat,
    /// The features that an implementation must support to write to the volume.
    pub ro_compat: RoCompat,
}

/// The features that a new volume can have.
const KNOWN: Features = Features {
    compat: Features::MODERN
        .compat
        .union(Compat::SPARSE_SUPER2)
        .union(Compat::FAST_COMMIT)
        .union(Compat::STABLE_INODES),
    incompat: Features::MODERN
        .incompat
        .union(Incompat::META_BG)
        .union(Incompat::MMP)
        .union(Incompat::EA_INODE)
        .union(Incompat::LARGEDIR)
        .union(Incompat::INLINE_DATA)
        .union(Incompat::ENCRYPT)
        .union(Incompat::CASEFOLD),
    ro_compat: Features::MODERN
        .ro_compat
        .union(RoCompat::GDT_CSUM)
        .union(RoCompat::QUOTA)
        .union(RoCompat::PROJECT)
        .union(RoCompat::BIGALLOC)
        .union(RoCompat::VERITY),
};

/// The rules between features. Each rule has two features and a value. If the first feature is on, the second feature must be on (`true`)
/// or off (`false`).
const RULES: &[(&str, bool, &str)] = &[
    ("orphan_file", true, "has_journal"),
    ("fast_commit", true, "has_journal"),
    ("metadata_csum_seed", true, "metadata_csum"),
    ("uninit_bg", false, "metadata_csum"),
    ("bigalloc", true, "extent"),
    ("64bit", true, "extent"),
    ("resize_inode", true, "sparse_super"),
    ("resize_inode", false, "meta_bg"),
    ("resize_inode", false, "sparse_super2"),
    ("project", true, "extra_isize"),
];

impl Features {
    /// The default features of a recent mke2fs, which are also the default here.
    pub const MODERN: Self = Self {
        compat: Compat::HAS_JOURNAL
            .union(Compat::EXT_ATTR)
            .union(Compat::RESIZE_INODE)
            .union(Compat::DIR_INDEX)
            .union(Compat::ORPHAN_FILE),
        incompat: Incompat::FILETYPE
            .union(Incompat::EXTENTS)
            .union(Incompat::SIXTY_FOUR_BIT)
            .union(Incompat::FLEX_BG)
            .union(Incompat::CSUM_SEED),
        ro_compat: RoCompat::SPARSE_SUPER
            .union(RoCompat::LARGE_FILE)
            .union(RoCompat::HUGE_FILE)
            .union(RoCompat::DIR_NLINK)
            .union(RoCompat::EXTRA_ISIZE)
            .union(RoCompat::METADATA_CSUM),
    };

    /// No features, as in an early ext2.
    pub const NONE: Self =
        Self { compat: Compat::empty(), incompat: Incompat::empty(), ro_compat: RoCompat::empty() };

    /// Changes the set as `mke2fs -O` does. `names` is a list of names, separated by commas. A `^` in front of a name disables the feature,
    /// and `none` disables all features. When a feature is enabled, the features that it requires are also enabled, and conflicting
    /// features are disabled.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown name, and for names that exclude each other; `Unsupported` for features that a new volume cannot have.
    pub fn edit(&mut self, names: &str) -> Result<()> {
        let words = || names.split(',').map(str::trim).filter(|word| !word.is_empty());
        for word in words() {
            match (word.strip_prefix('^'), word) {
                (None, "none") => *self = Self::NONE,
                (Some(name), _) => self.set(usual(name), false, RULES.len())?,
                (None, name) => self.set(usual(name), true, RULES.len())?,
            }
        }
        for word in words().filter(|word| *word != "none") {
            let (name, on) = word.strip_prefix('^').map_or((word, true), |name| (name, false));
            if Self::of_name(usual(name))?.is_within(*self) != on {
                return Err(Error::invalid(format!(
                    "the feature {word} contradicts another feature in the list: leave out one of them"
                )));
            }
        }
        Ok(())
    }

    /// Switches a feature on or off, and switches other features as the rules require. `depth` limits the recursion.
    fn set(&mut self, name: &str, on: bool, depth: usize) -> Result<()> {
        let feature = Self::of_name(name)?;
        if on && !feature.is_within(KNOWN) {
            return Err(Error::unsupported(format!("mkfs does not support the feature {name}")));
        }
        self.compat.set(feature.compat, on);
        self.incompat.set(feature.incompat, on);
        self.ro_compat.set(feature.ro_compat, on);
        let Some(depth) = depth.checked_sub(1) else { return Ok(()) };
        for (with, wanted, other) in RULES {
            let forward = on && *with == name && self.has(other) != *wanted;
            // If another feature has a rule against the new state of this feature, that other feature is switched off.
            let backward = *other == name && on != *wanted && self.has(with);
            if forward {
                self.set(other, *wanted, depth)?;
            } else if backward {
                self.set(with, false, depth)?;
            }
        }
        Ok(())
    }

    /// Whether the feature with this name is on.
    fn has(self, name: &str) -> bool {
        Self::of_name(name).is_ok_and(|feature| feature.is_within(self))
    }

    pub(in crate::fs::ext4) fn is_within(self, set: Self) -> bool {
        set.compat.contains(self.compat)
            && set.incompat.contains(self.incompat)
            && set.ro_compat.contains(self.ro_compat)
    }

    /// The feature with this name.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown name.
    pub(in crate::fs::ext4) fn of_name(name: &str) -> Result<Self> {
        let name = usual(name);
        let (compat, incompat, ro_compat) =
            (Compat::of_name(name), Incompat::of_name(name), RoCompat::of_name(name));
        if compat.is_none() && incompat.is_none() && ro_compat.is_none() {
            return Err(Error::invalid(format!("{name} is not a feature")));
        }
        Ok(Self {
            compat: compat.unwrap_or(Compat::empty()),
            incompat: incompat.unwrap_or(Incompat::empty()),
            ro_compat: ro_compat.unwrap_or(RoCompat::empty()),
        })
    }
}

/// The name that the rules use for a feature. mke2fs accepts two names for some features.
fn usual(name: &str) -> &str {
    if name == "extents" { "extent" } else { name }
}

impl Default for Features {
    fn default() -> Self {
        Self::MODERN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(names: &str) -> Result<Features> {
        let mut features = Features::MODERN;
        features.edit(names).map(|()| features)
    }

    #[test]
    fn a_feature_pulls_along_what_it_needs_and_pushes_out_what_it_excludes() {
        let features = edited("^has_journal").unwrap();
        assert!(!features.has("orphan_file"));
        let features = edited("meta_bg,^extra_isize,project").unwrap_err();
        assert!(features.to_string().contains("^extra_isize contradicts"));
        assert!(!edited("meta_bg").unwrap().has("resize_inode"));
        let features = edited("uninit_bg").unwrap();
        assert!(!features.has("metadata_csum") && !features.has("metadata_csum_seed"));
        let features = edited("^extent").unwrap();
        assert!(!features.has("64bit"));
        assert_eq!(edited("^extents").unwrap(), features);
        assert_eq!(edited("none").unwrap(), Features::NONE);
        assert_eq!(edited("none, filetype").unwrap().incompat, Incompat::FILETYPE);
    }

    #[test]
    fn contradicting_features_are_refused() {
        for names in ["meta_bg,resize_inode", "bigalloc,^extent", "uninit_bg,metadata_csum", "frob"]
        {
            assert!(edited(names).is_err(), "{names}");
        }
        for unsupported in ["compression", "journal_dev", "shared_blocks", "snapshot"] {
            let kind = edited(unsupported).unwrap_err().kind();
            assert_eq!(kind, crate::ErrorKind::Unsupported, "{unsupported}");
        }
        assert!(edited("^compression").is_ok());
    }
}
