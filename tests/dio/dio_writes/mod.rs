//! Direct writes. After a write, each kind of read returns the written data at every alignment. The device contains a valid volume with
//! this content. The tests predict the content of a file with a vector of bytes.

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
