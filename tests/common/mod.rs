//! Code that the tests share: images and mounts that are removed by guards, a generator of file trees, oracles, and the comparison of an
//! oracle's results with the results of ironmap. An oracle is an independent program, such as debugfs.
//!
//! An oracle fills a [`view::View`]. [`compare`] reports every difference between this view and ironmap's view of the same volume.

// Each test program uses only a part of this module.
#![allow(dead_code)]

pub(crate) mod again;
pub(crate) mod beneath;
pub(crate) mod calls;
pub(crate) mod command;
pub(crate) mod compare;
pub(crate) mod debugfs;
pub(crate) mod fixture;
pub(crate) mod full_disk;
pub(crate) mod image;
pub(crate) mod kernel;
pub(crate) mod loop_device;
pub(crate) mod mounted;
pub(crate) mod nbd_export;
pub(crate) mod process;
pub(crate) mod ranges;
pub(crate) mod reads;
pub(crate) mod realtime;
pub(crate) mod rng;
pub(crate) mod setting;
pub(crate) mod skip;
pub(crate) mod tree;
pub(crate) mod view;
pub(crate) mod watched;
pub(crate) mod xfs;
pub(crate) mod xfsprogs;
