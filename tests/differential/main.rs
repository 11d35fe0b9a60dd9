//! Compares ironmap with the kernel and with debugfs: all must see the same volume. A failure names the layout of the volume and the seed.

#[path = "../common/mod.rs"]
mod common;

mod casefold;
mod engines;
mod layouts;
mod real_tree;
mod sealed;

use common::compare::{assert_contents, assert_same};
use common::image::Image;
use common::reads::Depth;
use common::view::{Subject, View};
use common::{debugfs, kernel};

const SEED: u64 = 0x1d0_c0de;
const SIZE: &str = "256M";
const DEPTH: Depth = Depth { random: 12, stretches: 300 };

/// Compares ironmap's view with two oracles: the kernel, which has mounted the volume, and debugfs. Returns the kernel's view.
fn compare_with_kernel(image: &Image, block: u64, what: &str) -> View {
    let expected = kernel::view_with_maps(image.mount("ro,noload").dir(), DEPTH, SEED);
    image.check();
    let mut subject = Subject::open(image);
    let actual = subject.view();
    assert_same(&expected, &actual, &format!("{what}, against the kernel"));
    let expected_too = debugfs::view(image, block, &actual);
    assert_same(&expected_too, &actual, &format!("{what}, against debugfs"));
    assert_contents(&expected, &mut subject, &actual, what);
    expected
}
