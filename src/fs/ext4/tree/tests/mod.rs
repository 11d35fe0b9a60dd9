//! Tests of changes of maps. The results are compared with a model, with ironmap's own reads, and with e2fsck and debugfs, which are
//! independent implementations.

mod clusters;
mod full;
mod growth;
mod image;
mod model;
mod pointers;
mod revoked;
mod small;
