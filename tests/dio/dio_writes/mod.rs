//! Direct writes: what is written is what is read, by every way and at every alignment, and what stands on the device afterwards is a sound
//! volume with that content. Beside a model that is a vector of bytes.

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
