//! Compares a structure's records with the records that the check computed.

use super::Checker;
use crate::fs::check::{FindingSite, Kind};

/// The maximum number of records that are reported individually for each comparison.
const TOLD: usize = 8;

impl Checker<'_> {
    /// Compares the records of a structure on disk with the computed records. Both slices are sorted. `told` formats a record for messages.
    pub(super) fn compare_records<T: Ord>(
        &mut self,
        site: impl Into<FindingSite>,
        (recorded, found): (&[T], &[T]),
        told: impl Fn(&T) -> String,
        add: impl Fn(&mut Self, FindingSite, Kind),
    ) {
        let site = site.into();
        for (some, others, verb) in [(found, recorded, "lacks"), (recorded, found, "has")] {
            let differ = || some.iter().filter(|record| others.binary_search(record).is_err());
            for record in differ().take(TOLD) {
                let what = format!("the structure {verb} {}", told(record));
                add(self, site, Kind::Records { what });
            }
            let more = differ().skip(TOLD).count();
            if more > 0 {
                add(
                    self,
                    site,
                    Kind::Records { what: format!("the structure {verb} {more} other records") },
                );
            }
        }
    }
}
