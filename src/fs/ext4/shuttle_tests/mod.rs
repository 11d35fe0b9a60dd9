//! Tests of writes under the schedules of a model checker: `./x shuttle`.
//!
//! The checker switches threads at every lock, condition variable and atomic counter of [`crate::sync`]. In these tests it also switches
//! threads at every request to the device. The checker does not cover:
//!
//! - quick_cache, which is replaced by a cache that evicts at random;
//! - the memory orders of atomics, because all of them are sequentially consistent here;
//! - reference counts, and the hints of the block allocator;
//! - reads of a block during a write of the block, because each read and each write is one step.

mod blocks;
mod volume;
