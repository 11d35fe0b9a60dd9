//! Listings that stop and later continue at the number of a cursor, as with `telldir` and `seekdir`.

use ironmap::fs::DirCursor;
use ironmap::units::InodeNo;
use rustix::fs::FileType;

use crate::SEED;
use crate::common::rng::Rng;
use crate::common::view::{Subject, View};

/// Lists every directory as a whole and in parts. Asserts that both listings have the same entries, each of them once.
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
            // A new cursor must read its block again. So long listings use few cursors.
            if rng.below(1 + whole.len() as u64 / 50) == 0 {
                listing = inode.list(DirCursor::from_raw(last.to_raw())).unwrap();
            }
        }
        assert!(pieces == whole, "{}: {} of {} names", place(), pieces.len(), whole.len());
    }
}
