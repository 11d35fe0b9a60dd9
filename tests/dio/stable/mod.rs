//! Memory that changes while a device computes over it: no read fails for it and no tag is wrong, unless the caller is trusted; what that
//! costs in memory; and that what is wrong on the device is still an error.

mod checking;
mod hosts;
mod pool;
mod scribble;
mod scribbler;
mod ways;
