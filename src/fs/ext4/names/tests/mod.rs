//! Changes by this crate, judged by the crate itself, e2fsck, debugfs and the kernel.

mod forms;
mod hostile;
mod kernel;
mod model;
mod volume;
