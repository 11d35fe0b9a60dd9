//! XFS volumes with realtime files. The kernel need not support realtime files: mkfs.xfs makes the volume, and xfs_db assigns realtime
//! blocks to two files. xfs_repair accepts the result.

use std::path::PathBuf;

use ironmap::fs::Follow;

use super::command::run;
use super::image::{Image, scratch, words};
use super::xfsprogs;

/// The realtime blocks of the two files. Blocks 8 to 11 of the first realtime group belong to one file. Blocks 10 and 11 also belong to the
/// other file.
const SHARED: &[(&str, u64, u64)] = &[("one", 8, 4), ("two", 10, 2)];
const APART: &[(&str, u64, u64)] = &[("one", 8, 2), ("two", 10, 2)];

/// The options of mkfs.xfs and the commands of xfs_db that make a volume.
pub(crate) struct Way {
    pub(crate) mkfs: &'static str,
    /// Whether the realtime section is on a separate device.
    pub(crate) apart: bool,
    pub(crate) files: &'static [(&'static str, u64, u64)],
    /// Commands of xfs_db that make the two files own the realtime blocks in the metadata. ONE and TWO stand for the inode numbers of the
    /// files.
    pub(crate) space: &'static [&'static str],
}

pub(crate) const TREES: Way = Way {
    mkfs: "-m metadir=1,reflink=1,rmapbt=1 -n parent=1 -r rgsize=32m",
    apart: true,
    files: SHARED,
    space: &[
        "path -m /rtgroups/0.bitmap;dblock 0;write -d rtwords[0] 0xfffff0fe",
        "path -m /rtgroups/0.summary;dblock 0;write -d suminfo[2] 1",
        "sb 0;write -d frextents 16379",
        "path -m /rtgroups/0.rmap;write -d u3.rtrmapbt.numrecs 3;write -d u3.rtrmapbt.recs[2].startblock 8;\
         write -d u3.rtrmapbt.recs[2].blockcount 4;write -d u3.rtrmapbt.recs[2].owner ONE;\
         write -d u3.rtrmapbt.recs[3].startblock 10;write -d u3.rtrmapbt.recs[3].blockcount 2;\
         write -d u3.rtrmapbt.recs[3].owner TWO",
        "path -m /rtgroups/0.refcount;write -d u3.rtrefcbt.numrecs 1;write -d u3.rtrefcbt.recs[1].startblock 10;\
         write -d u3.rtrefcbt.recs[1].blockcount 2;write -d u3.rtrefcbt.recs[1].refcount 2",
    ],
};
pub(crate) const NO_GROUPS: Way = Way {
    mkfs: "-m metadir=0,reflink=0,rmapbt=0",
    apart: true,
    files: APART,
    space: &[
        "inode 129;dblock 0;type data;write fill 0xf0 1 1",
        // These commands change the realtime summary, which counts the free runs, in little-endian numbers. At first, one run of 16384
        // extents was free. After the assignment of blocks 8 to 11, a run of 8 extents and a run of 16372 extents are free.
        "inode 130;dblock 0;type data;write fill 1 12 1;write fill 1 52 1;write fill 0 56 1",
        "sb 0;write -d frextents 16380",
    ],
};
pub(crate) const ZONES: Way = Way {
    mkfs: "-r zoned=1,rgsize=8m",
    apart: true,
    files: APART,
    space: &["path -m /rtgroups/0.rmap;write -d v3.cowextsize 4;write -d u3.rtrmapbt.numrecs 2;\
         write -d u3.rtrmapbt.recs[1].startblock 8;write -d u3.rtrmapbt.recs[1].blockcount 2;\
         write -d u3.rtrmapbt.recs[1].owner ONE;write -d u3.rtrmapbt.recs[2].startblock 10;\
         write -d u3.rtrmapbt.recs[2].blockcount 2;write -d u3.rtrmapbt.recs[2].owner TWO"],
};

/// The same volume as `ZONES`, but the realtime section is on the data device.
pub(crate) const OWN_ZONES: Way =
    Way { mkfs: "-d size=304m -r zoned=1,rgsize=8m", apart: false, ..ZONES };

/// A volume with realtime files, made with one of these sets of options and commands.
pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) image: Image,
    pub(crate) device: PathBuf,
}

impl World {
    pub(crate) fn new(way: &Way) -> Self {
        let dir = scratch();
        let device = dir.path().join("realtime");
        run("truncate", &["-s".as_ref(), "64M".as_ref(), device.as_os_str()]);
        let proto = dir.path().join("proto");
        let file = "---644 0 0 /dev/null";
        std::fs::write(&proto, format!("/\n0 0\nd--755 0 0\none {file}\ntwo {file}\n$\n")).unwrap();
        let rtdev = format!("rtdev={}", device.display());
        let mut options = vec!["-p", proto.to_str().unwrap()];
        options.extend(way.apart.then_some(["-r", &rtdev]).into_iter().flatten());
        options.extend(words(way.mkfs));
        let image = Image::mkfs_xfs_by(
            &xfsprogs::newer("mkfs.xfs"),
            if way.apart { "320M" } else { "480M" },
            &options,
        )
        .unwrap();
        let volume = image.open().unwrap();
        let number =
            |name: &str| volume.fs().resolve(name.as_bytes(), Follow::All).unwrap().number().0;
        let numbers = ["one", "two"].map(number);
        drop(volume);
        for (name, start, count) in way.files {
            let shares = u8::from(way.files == SHARED);
            let size = count * 4096;
            let mut fields = format!(
                "path /{name};write -d core.realtime 1;write -d core.nextents 1;write -d core.nblocks {count};\
                 write -d core.size {size};write -d u3.bmx[0].startoff 0;write -d u3.bmx[0].startblock {start};\
                 write -d u3.bmx[0].blockcount {count};write -d u3.bmx[0].extentflag 0"
            );
            if shares == 1 {
                fields += ";write -d v3.reflink 1";
            }
            damaged(&image.path(), &fields);
        }
        let [one, two] = numbers.map(|number| number.to_string());
        for commands in way.space {
            damaged(&image.path(), &commands.replace("ONE", &one).replace("TWO", &two));
        }
        Self { dir, image, device }
    }
}

/// Runs commands of xfs_db on an image. xfs_db updates the checksums.
pub(crate) fn damaged(image: &std::path::Path, commands: &str) {
    let mut args = vec!["-x".to_owned()];
    for command in commands.split(';') {
        args.extend(["-c".to_owned(), command.to_owned()]);
    }
    args.push(image.to_str().expect("a plain path").to_owned());
    run(&xfsprogs::newer("xfs_db"), &args);
}
