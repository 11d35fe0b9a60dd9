//! Changes the memory of requests while a device computes over it. These changes cause no failed read and no wrong tag, unless the caller
//! is trusted. Other tests measure the memory for the copies, and show that a fault on the device is still an error.

mod checking;
mod hosts;
mod pool;
mod scribble;
mod scribbler;
mod ways;
