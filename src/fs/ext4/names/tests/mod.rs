//! Tests of changes of directories. ironmap, e2fsck, debugfs and the kernel check the result.

mod forms;
mod hostile;
mod kernel;
mod model;
mod volume;
