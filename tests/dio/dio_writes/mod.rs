//! Direct writes: reads return the written data, by every path and at every alignment, and the device holds a sound
//! volume with that content afterwards. Beside a model that is a vector of bytes.

mod appends;
mod bench;
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
