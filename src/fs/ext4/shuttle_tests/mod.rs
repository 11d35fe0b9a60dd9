//! Tests of writes under the schedules of a model checker: `./x shuttle`.
//!
//! The checker switches threads at every lock, condition and counter of [`crate::sync`], and here at every request to the device. It does not
//! cover quick_cache itself (a stand-in that evicts at random replaces it), the memory orders of atomics (all are the strongest), reference
//! counts, the allocator's hints, and reads of a block while the device is writing it (each read and write is one step).

mod blocks;
mod volume;
