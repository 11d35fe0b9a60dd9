//! The [`Target`] of a request: the file's properties that the direct-I/O core needs.

use super::LiveFile;
use crate::bio::Dev;
use crate::dio::{Holding, Target};
use crate::error::{Error, Result};
use crate::open_file::{OpenInode, QueueFiles, View, Views};

/// The properties of a request's file, with the size and the map in the queue's copy (the view). `None` if the view is out of date. The
/// request has locked the content.
#[inline(always)]
pub(super) fn current_target<'a>(
    view: &'a View,
    file: &'a LiveFile,
    inode: &OpenInode,
    holding: Option<Holding>,
) -> Option<Target<'a, View>> {
    let size = view.current_size(inode)?;
    Some(Target { size, ..target_by_metadata(view, file, holding) })
}

/// The properties of a request's file, with the file size in the metadata. A write that ends past this size does not take the simple path.
#[inline(always)]
pub(super) fn target_by_metadata<'a>(
    view: &'a View,
    file: &'a LiveFile,
    holding: Option<Holding>,
) -> Target<'a, View> {
    Target {
        map: view,
        dev: Dev::OWN,
        geometry: &file.geometry,
        inode: file.handle.number,
        size: view.size_by_metadata(),
        strict: &file.strict,
        live: holding,
    }
}

/// Records that a write has changed the file's time stamps. The first write after a query of the times reads the clock and sets the times.
/// Further writes are faster: they only mark the inode, and the next query sets the times (POSIX: "marked for update").
#[inline(always)]
pub(super) fn stamp_overwrite(view: &View, file: &LiveFile) {
    if view.queue_file.wrote() {
        file.stamp_write();
    }
}

impl LiveFile {
    /// The properties of the file for a request that has locked the content. The size and the map come from the same read of the inode. If
    /// the map were older than the size, newly appended data would be read as zeros.
    pub(super) fn target<'a>(
        &'a self,
        views: &'a mut Views,
        files: &mut QueueFiles,
        holding: Option<Holding>,
        nowait: bool,
    ) -> Result<Target<'a, View>> {
        let size = loop {
            let view = views.current(files, &self.handle, nowait)?;
            match view.current_size(view.open()) {
                Some(size) => break size,
                None if nowait => return Err(would_change()),
                None => {}
            }
        };
        let view = views.get(&self.handle).ok_or_else(no_view)?;
        Ok(Target { size, ..target_by_metadata(view, self, holding) })
    }

    #[cold]
    pub(super) fn stamp_write(&self) {
        self.handle.file.stamp_write();
    }
}

#[cold]
pub(super) fn would_change() -> Error {
    Error::would_block("the request would have to change or read the file's metadata")
}

#[cold]
pub(super) fn no_view() -> Error {
    Error::invalid("the queue has no copy of the file's map")
}
