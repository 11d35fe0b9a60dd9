//! The write side under the schedules of a model checker: `./x shuttle`.
//!
//! The checker switches threads at every lock, condition and counter of [`crate::sync`], and here at every request to the device. It does
//! not cover quick_cache itself (a stand-in that evicts at random replaces it), the memory orders of atomics (all are the strongest),
//! reference counts, the allocator's hints, and a block that the device reads while it writes it (both are one step).

mod blocks;
mod volume;
