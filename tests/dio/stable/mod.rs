//! Changes the memory of requests in flight, while a device computes tags over this memory. No read fails and no tag is wrong, unless the
//! caller is trusted not to change the memory. Other tests measure the memory for the copies, and show that a fault on the device is still
//! an error.

mod checking;
mod hosts;
mod pool;
mod scribble;
mod scribbler;
mod ways;
