//! A format that only tests have: the program may use only the features that every format has.

#[path = "../../../../tests/mem_fs/format/mod.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
pub(crate) mod format;

mod commands;

use std::cell::RefCell;

use ironmap::{Location, Volume};

use self::format::MemFs;

/// The place of the volume in command lines. No file has this name.
const NAME: &str = "memory";

thread_local! {
    static VOLUME: RefCell<Option<MemFs>> = const { RefCell::new(None) };
}

/// The opened volume of this thread's test, if `location` is its place.
pub(crate) fn open(location: &Location) -> Option<Volume> {
    let fs = VOLUME.with_borrow(Clone::clone)?;
    (location.to_string() == NAME).then(|| fs.opened_again())
}
