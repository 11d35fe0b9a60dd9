//! The program: every command, what it prints, what it refuses, and its exit codes.

#[path = "../../../../tests/common/mod.rs"]
mod common;
#[path = "../support/results.rs"]
mod results;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/trees.rs"]
mod trees;

mod agreeing_with_fio;
mod changing;
mod checking;
mod copying;
mod host;
mod integrity;
mod making;
mod measuring;
mod reading;
mod refusing;
mod sources;
