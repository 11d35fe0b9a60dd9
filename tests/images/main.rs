//! Images of virtual machines as devices, compared with qemu-img: reading, writing, refusals, and hostile images.

mod bounds;
#[path = "../common/mod.rs"]
mod common;
mod crash;
mod hostile;
mod make;
mod reading;
mod volume;
mod writing;
