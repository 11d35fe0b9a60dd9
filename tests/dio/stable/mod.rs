//! Memory that changes while a device computes over it. No read fails for this reason and no tag is wrong, unless the caller is trusted.
//! Other tests measure the memory for the copies, and show that a fault on the device is still an error.

mod checking;
mod hosts;
mod pool;
mod scribble;
mod scribbler;
mod ways;
