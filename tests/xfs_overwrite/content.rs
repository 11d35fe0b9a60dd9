//! The content that the kernel reads after the overwrites.

use std::collections::BTreeMap;

use crate::Known;
use crate::common::image::Image;

/// Mounts the volume for writing, and asserts that no recovery is needed and that the kernel reads the written bytes.
pub(crate) fn assert_read_by_kernel(image: &Image, files: &BTreeMap<String, Known>, what: &str) {
    let mount = image.mount("noatime");
    for (name, known) in files {
        let read = std::fs::read(mount.dir().join(name)).unwrap();
        assert!(read == known.content, "{what}: the kernel reads other bytes of {name}");
    }
    drop(mount);
    image.check();
}
