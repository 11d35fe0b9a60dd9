//! The target of a request to a file that can change.

use super::Live;
use super::write::would_change;
use crate::bio::Dev;
use crate::dio::{Holding, Target};
use crate::error::{Error, Result};
use crate::fs::Access;
use crate::open_file::{OpenInode, QueueFiles, View, Views};

/// The file if its view is current, for a request that holds its content.
#[inline(always)]
pub(super) fn current_target<'a>(
    view: &'a View,
    live: &'a Live,
    inode: &OpenInode,
    holding: Option<Holding>,
) -> Option<Target<'a, View>> {
    let size = view.current_size(inode)?;
    Some(Target { size, ..target_by_metadata(view, live, holding) })
}

/// The file with the size of its metadata: an overwrite beyond that size is not a simple one.
#[inline(always)]
pub(super) fn target_by_metadata<'a>(
    view: &'a View,
    live: &'a Live,
    holding: Option<Holding>,
) -> Target<'a, View> {
    Target {
        map: view,
        dev: Dev::OWN,
        geometry: &live.geometry,
        inode: live.number,
        size: view.size_by_metadata(),
        strict: &live.strict,
        live: holding,
    }
}

/// Records the time of a write. The first write after a query of the file's times sets them. Later writes are only marked, and get the time
/// of the next query (POSIX: marked for update), because reading a clock for each write is expensive.
#[inline(always)]
pub(super) fn stamp_overwrite(view: &View, live: &Live) {
    if view.queue_file.wrote() {
        live.stamp_write();
    }
}

impl Live {
    /// The file for a request that holds its content. Size and map must be of the same time: with an older map, data appended since would
    /// read as zeros.
    pub(super) fn target<'a>(
        &'a self,
        views: &'a mut Views,
        files: &mut QueueFiles,
        holding: Option<Holding>,
        nowait: bool,
    ) -> Result<Target<'a, View>> {
        let size = loop {
            let view = self.current(views, files, nowait)?;
            match view.current_size(view.open()) {
                Some(size) => break size,
                None if nowait => return Err(would_change()),
                None => {}
            }
        };
        let view = self.view(views).ok_or_else(|| Error::invalid("a file without a view"))?;
        Ok(Target { size, ..target_by_metadata(view, self, holding) })
    }

    #[cold]
    pub(super) fn stamp_write(&self) {
        self.held.stamp(Access::Write);
    }
}
