//! The loads of `ironmap bench`: one launch, from its plan to its figures.
//!
//! They are a crate of their own because the program is built for size and they are not: each request that they count goes through code of the
//! library that is inlined here. The interface is the program's own; it is not stable.

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
