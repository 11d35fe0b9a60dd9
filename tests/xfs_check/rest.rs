//! The bytes of a superblock's sector that follow the last field.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::base::Tools;
use crate::common::image::{Image, words};
use crate::common::skip::Need;
use crate::common::xfs::Layout;
use crate::common::xfsprogs;
use crate::verdict::{ironmap, repair};
use crate::{note, require};

/// The byte offset of the checksum.
const CRC: usize = 224;

/// The check finds nonzero bytes after the last field. The test changes the first superblock and a copy. The last field differs between the
/// volumes.
#[test]
fn bytes_past_the_fields_of_a_superblock_are_found() {
    require!([Need::Tool("mkfs.xfs"), Need::Tool("xfs_repair")]);
    for (options, places, tools) in [
        ("-m crc=0", &[208, 300, 511][..], Tools::SYSTEM),
        ("-s size=512", &[248, 263, 264, 303, 511], Tools::SYSTEM),
        ("-s size=512 -m metadir=1", &[288, 304, 511], Tools::NEWER),
    ] {
        let need = Need::Variable(xfsprogs::VARIABLE);
        if let Some(why) = need.missing().filter(|_| options.contains("metadir")) {
            note(&why);
            continue;
        }
        let made = Image::mkfs_xfs_by(&tools.program("mkfs.xfs"), "320M", &words(options));
        let image = made.unwrap();
        let file = File::options().read(true).write(true).open(image.path()).unwrap();
        for start in [0, Layout::of(&file).group_len()] {
            let mut sound = [0; 512];
            file.read_exact_at(&mut sound, start).unwrap();
            for at in places.iter().copied() {
                let what = format!("{options}, byte {at} of the superblock at {start}");
                let mut bytes = sound;
                bytes[at] = 0xA5;
                if !options.contains("crc=0") {
                    bytes[CRC..CRC + 4].fill(0);
                    let sum = crc32c::crc32c(&bytes);
                    bytes[CRC..CRC + 4].copy_from_slice(&sum.to_le_bytes());
                }
                file.write_all_at(&bytes, start).unwrap();
                for verdict in [repair(&image.path(), tools), ironmap(&image.path())] {
                    assert!(!verdict.clean, "{what}: {}", verdict.text);
                }
            }
            file.write_all_at(&sound, start).unwrap();
        }
        for verdict in [repair(&image.path(), tools), ironmap(&image.path())] {
            assert!(verdict.clean, "{options}: {}", verdict.text);
        }
    }
}
