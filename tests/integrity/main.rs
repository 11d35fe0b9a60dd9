//! The integrity device. It never returns data that were changed on the devices below it, and it never refuses valid data.

#![allow(unreachable_pub, reason = "fuzz/ gives one of these types out")]

#[path = "../common/rng.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod rng;

mod crash;
mod damage;
mod discards;
mod faults;
mod flips;
mod formats;
mod garbage;
mod overlaps;
mod scrub;
mod stand;
