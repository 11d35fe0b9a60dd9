//! The `ironmap` program.
fn main() {}
