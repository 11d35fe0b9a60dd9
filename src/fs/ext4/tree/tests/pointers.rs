//! Tests of files without extents, with pointers at each level.

use super::image::extent;
use super::model::Run;
use crate::error::ErrorKind;
use crate::fs::ext4::for_tests::Image;
use crate::iomap::ExtentState::{Unwritten, Written};

const KINDS: [(&str, u64); 4] = [
    ("-t ext2 -b 1024", 256),
    ("-t ext3 -b 1024", 256),
    ("-t ext3 -b 4096", 1024),
    ("-t ext4 -b 1024 -O ^extents,^64bit,^flex_bg,^huge_file", 256),
];

/// Blocks can be mapped on both sides of each border between two levels or two pointer blocks. At the end, all blocks are freed.
#[test]
fn pointers_at_every_level() {
    for (kind, fan_out) in KINDS {
        let image = Image::with_file(kind, "64M");
        let file = image.open_file();
        let borders = [
            12,
            12 + fan_out,
            12 + 2 * fan_out,
            12 + fan_out + fan_out * fan_out,
            12 + 2 * fan_out + fan_out * fan_out,
            12 + fan_out + 2 * fan_out * fan_out,
        ];
        file.set_size(borders[5] + 10);
        let mut mapped = Vec::new();
        for border in borders {
            let (start, len) = file.allocate(2000, 10);
            assert_eq!(len, 10);
            let first = border - 5;
            file.map(first, start, 10, Written).unwrap();
            mapped.push(extent(first, start, 10, Written));
        }
        assert_eq!(
            file.map(7, mapped[0].start.0, 1, Written).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        let unwritten = file.map(100, mapped[0].start.0, 1, Unwritten).unwrap_err();
        assert_eq!(unwritten.kind(), ErrorKind::Unsupported);
        assert_eq!(file.shift(3, 4).unwrap_err().kind(), ErrorKind::Unsupported);
        let behind = file.map(1 << 31, mapped[0].start.0, 1, Written).unwrap_err();
        if fan_out == 256 {
            assert_eq!(behind.kind(), ErrorKind::FileTooLarge);
        }
        file.set_state(0, 50, Written).unwrap();
        assert_eq!(file.extents(), mapped, "{kind}");
        file.close();
        image.fsck();
        let shown = image.debugfs("stat /f");
        assert!(shown.contains("(TIND)") && shown.contains("(DIND)"), "{shown}");
        let file = image.open_file();
        file.unmap(9, borders[5] + 2).unwrap();
        assert_eq!(file.extents().len(), 2);
        file.unmap(0, u64::MAX).unwrap();
        assert_eq!((file.extents(), file.inode().stat().blocks), (vec![], 0));
        file.close();
        image.fsck();
    }
}

#[test]
fn random_changes_of_pointers() {
    for (seed, (options, _)) in (21..).zip(KINDS) {
        Run {
            seed,
            options,
            blocks: 90_000,
            steps: 1500,
            extents: false,
            scattered: 500,
            depth: 0,
        }
        .go();
    }
}
