//! The loads of `ironmap bench`: one launch, from its plan to its figures.
//!
//! They have their own crate because the program is optimized for size, and loads must be fast: each measured request runs library code
//! that is inlined here. The interface is for the program only, and is not stable.

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
