//! Reads tar archives. An archive is a stream of members, which is read once from the beginning to the end, with bounded memory.
//!
//! The supported formats are those of POSIX (ustar, pax), of GNU tar, and of Unix V7. An archive may be compressed by gzip or zstd.

mod member;
mod pax;
mod sparse;
mod stream;

pub(crate) use self::member::{Archive, Member, is_device_number, normal};
pub(crate) use self::pax::push as push_record;
pub(crate) use self::sparse::Written;
pub(crate) use self::stream::{Input, decompressed};
