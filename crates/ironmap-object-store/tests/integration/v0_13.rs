//! The tests for object_store 0.13.

pub(crate) use object_store_0_13 as object_store;

#[allow(clippy::duplicate_mod, reason = "each version compiles the file with its own types")]
#[path = "suite.rs"]
mod suite;
