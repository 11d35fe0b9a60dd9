//! Runs the tests that object_store provides for implementations of its trait, for both kinds of stores and for each version.

#[cfg(feature = "object_store_0_13")]
mod v0_13;
#[cfg(feature = "object_store_0_14")]
mod v0_14;
