//! What is changed here is read by ourselves, e2fsck, debugfs and the kernel.

mod forms;
mod hostile;
mod kernel;
mod model;
mod volume;
