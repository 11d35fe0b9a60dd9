//! Changes by this crate are read by itself, e2fsck, debugfs and the kernel.

mod forms;
mod hostile;
mod kernel;
mod model;
mod volume;
