//! Direct writes. After a write, each kind of read returns the written data at every alignment, and the device contains a valid volume with
//! this content. The model of each file is a vector of bytes.

mod appends;
pub(crate) mod bench;
mod cuts;
mod durable;
mod errors;
mod kernel;
mod leftovers;
mod model;
mod parts;
mod rules;
mod torture;
mod waits;
