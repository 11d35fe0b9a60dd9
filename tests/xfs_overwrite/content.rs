//! After overwrites by ironmap, the kernel reads the content.

use std::collections::BTreeMap;

use crate::Known;
use crate::common::image::Image;

/// Mounts the volume for writing. Asserts that the kernel needs no recovery and reads the written bytes.
pub(crate) fn assert_read_by_kernel(image: &Image, files: &BTreeMap<String, Known>, what: &str) {
    let mount = image.mount("noatime");
    for (name, known) in files {
        let read = std::fs::read(mount.dir().join(name)).unwrap();
        assert!(read == known.content, "{what}: the kernel reads other bytes of {name}");
    }
    drop(mount);
    image.check();
}
