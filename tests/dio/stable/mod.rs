//! Changes the memory of requests in flight, while a device computes tags (checksums) over this memory. Every read succeeds and every tag
//! is right, except with the method `ZeroCopy`, which relies on the caller not to change the memory. Other tests measure the memory for the
//! copies, and show that a fault on the device is still an error.

mod checking;
mod hosts;
mod pool;
mod scribble;
mod scribbler;
mod ways;
