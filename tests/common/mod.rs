//! What the tests share: images with guards, and files of every shape that a read can meet.

// Each test program uses its own part.
#![allow(dead_code)]

pub(crate) mod command;
pub(crate) mod fixture;
pub(crate) mod image;
pub(crate) mod ranges;
pub(crate) mod rng;
pub(crate) mod skip;
