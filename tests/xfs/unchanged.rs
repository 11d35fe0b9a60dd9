//! ironmap reads an image and does not change any of its bytes.

use std::os::unix::fs::MetadataExt;

use crate::common::command::run;
use crate::common::image::Image;
use crate::common::skip::Need;
use crate::fill::{Amount, fill};
use crate::{DEPTH, SEED, SIZE, common, compare_with_kernel, require};

#[test]
fn reading_changes_no_byte() {
    require!([Need::Root, Need::Tool("mkfs.xfs")]);
    let image = Image::mkfs_xfs(SIZE, &[]).unwrap();
    fill(image.mount("rw").dir(), 4096, Amount::Small, true);
    let state = || {
        let sum = run("sha256sum", &[image.path()]);
        (sum, image.path().metadata().unwrap().mtime_nsec())
    };
    let before = state();
    let expected = compare_with_kernel(&image, "", "unchanged");
    // The volume is no longer mounted. It is read again.
    let mut subject = common::view::Subject::open(&image);
    let numbers = subject.view();
    common::compare::assert_contents(&expected, &mut subject, &numbers, "again");
    drop(subject);
    assert!(state() == before, "the image has changed, seed {SEED:#x}, {DEPTH:?}");
}
