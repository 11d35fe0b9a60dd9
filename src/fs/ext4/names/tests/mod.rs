//! Changes of directories by ironmap, checked by ironmap itself, e2fsck, debugfs and the kernel.

mod forms;
mod hostile;
mod kernel;
mod model;
mod volume;
