//! Maps that ironmap changes, compared with a model, with its own reads, and with the independent e2fsck and debugfs.

mod clusters;
mod full;
mod growth;
mod image;
mod model;
mod pointers;
mod revoked;
mod small;
