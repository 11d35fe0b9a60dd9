//! Images of virtual machines as devices: reading, writing, refusals, and hostile images. The oracle is qemu-img.

mod bounds;
#[path = "../common/mod.rs"]
mod common;
mod crash;
mod full;
mod hostile;
mod make;
mod reading;
mod volume;
mod writing;
