//! Direct writes: afterwards each kind of read, at every alignment, returns the written data, and the device contains a valid volume with
//! this content. A vector of bytes is the model of each file.

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
