//! Tests of writes under the schedules of a model checker: `./x shuttle`.
//!
//! The checker switches threads at every lock, condition variable and atomic counter of [`crate::sync`], and in these tests also at every
//! request to the device. It does not cover quick_cache (a substitute that evicts at random replaces it), the memory orders of atomics (all
//! are sequentially consistent), reference counts, the hints of the block allocator, and reads of a block during a write of the block (each
//! read and write is one step).

mod blocks;
mod volume;
