//! The integrity device: what was changed beneath it is never read, whatever else happens, and nothing else is ever refused.

#[path = "../common/rng.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod rng;

mod crash;
mod faults;
mod flips;
mod formats;
mod garbage;
mod overlaps;
mod scrub;
mod stand;
