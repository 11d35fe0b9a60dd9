//! Maps that we change, held against a model, against what we read, and against e2fsck and debugfs, which know nothing of us.

mod clusters;
mod full;
mod growth;
mod image;
mod model;
mod pointers;
mod revoked;
mod small;
