//! Memory that changes while a device computes over it: no read fails for it and no tag is wrong, unless the caller is trusted; the costs
//! in memory; and that a fault on the device is still an error.

mod checking;
mod hosts;
mod pool;
mod scribble;
mod scribbler;
mod ways;
