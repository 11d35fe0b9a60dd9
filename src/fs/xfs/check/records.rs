//! Records that a structure has, beside those that were found elsewhere.

use super::Checker;
use crate::fs::check::{FindingSite, Kind};

/// Records of one difference that are told one by one.
const TOLD: usize = 8;

impl Checker<'_> {
    /// Compares the records that a structure has with those that were found; both are in order. `told` names a record.
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
                let what = format!("it {verb} {}", told(record));
                add(self, site, Kind::Records { what });
            }
            let more = differ().skip(TOLD).count();
            if more > 0 {
                add(self, site, Kind::Records { what: format!("it {verb} {more} more records") });
            }
        }
    }
}
