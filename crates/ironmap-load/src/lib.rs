//! Runs the workloads of `ironmap bench`: one run of the benchmark in one process, from its plan to its figures.
//!
//! The loads must be fast, but the program is optimised for size. Therefore the loads have their own crate. The library code of each
//! measured request is inlined here. The interface is only for the program `ironmap`, and is not stable.

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
