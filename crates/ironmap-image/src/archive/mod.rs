//! tar archives: a stream of members is read once, from its beginning to its end, with bounded memory.
//!
//! Read are the formats of POSIX (ustar, pax), of GNU tar and of Unix V7, plain or compressed by gzip or zstd.

mod member;
mod pax;
mod sparse;
mod stream;

pub(crate) use self::member::{Archive, Member, is_device_number, normal};
pub(crate) use self::pax::push as push_record;
pub(crate) use self::sparse::Written;
pub(crate) use self::stream::{Input, decompressed};
