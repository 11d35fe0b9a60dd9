//! Listings that are stopped, and continued from the number of a cursor, as `telldir` and `seekdir` do.

use ironmap::fs::DirCursor;
use ironmap::units::InodeNo;
use rustix::fs::FileType;

use crate::SEED;
use crate::common::rng::Rng;
use crate::common::view::{Subject, View};

/// Asserts for every directory that a listing in parts has the same entries as a single listing, each entry once.
pub(crate) fn assert_cursors(subject: &Subject, view: &View, what: &str) {
    let rng = &mut Rng::new(SEED);
    for (path, record) in view.iter().filter(|(_, record)| record.is(FileType::Directory)) {
        let place = || format!("{what}: /{}", path.escape_ascii());
        let inode = subject.fs().inode(InodeNo(record.inode.unwrap())).unwrap();
        let whole: Vec<_> = inode.read_dir().unwrap().map(|entry| entry.unwrap().name).collect();
        let mut pieces = Vec::with_capacity(whole.len());
        let mut listing = inode.list(DirCursor::START).unwrap();
        let mut last = DirCursor::START;
        while let Some(entry) = listing.next() {
            pieces.push(entry.unwrap().name);
            assert!(listing.cursor() > last, "{}: the cursor stays", place());
            last = listing.cursor();
            // Each cursor reads its block again, so long listings have few cursors.
            if rng.below(1 + whole.len() as u64 / 50) == 0 {
                listing = inode.list(DirCursor::from_raw(last.to_raw())).unwrap();
            }
        }
        assert!(pieces == whole, "{}: {} of {} names", place(), pieces.len(), whole.len());
    }
}
