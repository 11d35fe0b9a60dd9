//! Changes the memory of requests in flight, while a device computes tags over this memory. Every read succeeds and every tag is right,
//! except with the method `ZeroCopy`, which trusts the caller. Other tests measure the memory for the copies, and show that a fault on the
//! device is still an error.

mod checking;
mod hosts;
mod pool;
mod scribble;
mod scribbler;
mod ways;
