//! Converts results of requests to replies of the FUSE protocol.

use fuser::{Errno, FopenFlags, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyXattr};

use super::Mount;
use super::fail::Result;
use super::files::Opened;
use super::names::{Entry, FOREVER};

impl Opened {
    pub(super) fn flags(&self) -> FopenFlags {
        if self.direct {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        } else {
            FopenFlags::empty()
        }
    }
}

pub(super) fn reply_entry(mount: &Mount, entry: Result<Entry>, reply: ReplyEntry) {
    match entry {
        Ok(entry) => reply.entry(&entry.valid, &entry.attr, entry.generation),
        Err(fail) => reply.error(mount.report(&fail)),
    }
}

pub(super) fn reply_empty(mount: &Mount, done: Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(fail) => reply.error(mount.report(&fail)),
    }
}

pub(super) fn reply_attr(mount: &Mount, attr: Result<fuser::FileAttr>, reply: ReplyAttr) {
    match attr {
        Ok(attr) => reply.attr(&FOREVER, &attr),
        Err(fail) => reply.error(mount.report(&fail)),
    }
}

pub(super) fn reply_open(mount: &Mount, opened: Result<Opened>, reply: ReplyOpen) {
    match opened {
        Ok(opened) => reply.opened(opened.handle, opened.flags()),
        Err(fail) => reply.error(mount.report(&fail)),
    }
}

/// Replies with a value, or with its size if the caller has requested only the size.
pub(super) fn reply_value(mount: &Mount, value: Result<Vec<u8>>, room: u32, reply: ReplyXattr) {
    match value {
        Ok(value) => send_value(&value, room, reply),
        Err(fail) => reply.error(mount.report(&fail)),
    }
}

pub(super) fn send_value(value: &[u8], room: u32, reply: ReplyXattr) {
    match value.len() {
        len if room == 0 => reply.size(len as u32),
        len if len > room as usize => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}
