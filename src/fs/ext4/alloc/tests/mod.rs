//! Allocation against a model that knows nothing of groups, with e2fsck as the judge of what is left on disk.

mod image;
mod model;

use image::Image;
use model::Model;

/// What mke2fs is asked for, and the size of the volume.
const VOLUMES: &[(&str, &str)] = &[
    ("-t ext4", "300M"),
    ("-t ext4 -b 1024", "60M"),
    ("-t ext3", "200M"),
    ("-t ext2 -b 1024", "40M"),
];

#[test]
fn what_is_allocated_and_freed_is_what_the_bitmaps_say() {
    for (seed, (options, size)) in (1..).zip(VOLUMES) {
        let image = Image::new(options, size);
        let mut model = Model::new(seed);
        let fs = image.open();
        for _ in 0..300 {
            model.step(&fs);
        }
        fs.close().unwrap();
        drop(fs);
        let found = image.check();
        assert_eq!(found.blocks, model.blocks(), "blocks in use by {options}, seed {seed}");
        assert_eq!(found.inodes, model.inodes(), "inodes in use by {options}, seed {seed}");

        let fs = image.open();
        model.free_all(&fs);
        fs.close().unwrap();
        drop(fs);
        image.assert_clean();
    }
}
