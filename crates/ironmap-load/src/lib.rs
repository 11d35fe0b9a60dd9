//! The loads of `ironmap bench`: one launch, from its plan to its figures.
//!
//! The loads have their own crate because the program is optimised for size, but the loads must be fast: the library code of each measured
//! request is inlined here. The interface is only for the program `ironmap`, and is not stable.

pub mod errors;
pub mod figures;
mod lane;
pub mod load;
#[cfg(test)]
mod other_format;
pub mod plan;
pub mod positions;
pub mod prepare;
mod source;
pub mod target;
