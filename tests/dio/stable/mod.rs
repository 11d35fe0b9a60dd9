//! Memory changes while a device computes over it: no read fails because of that and no tag is wrong, unless the caller is trusted. Other
//! tests measure the memory that this costs, and show that a fault on the device is still an error.

mod checking;
mod hosts;
mod pool;
mod scribble;
mod scribbler;
mod ways;
