//! Metadata with a log position after the head of the log, because the log records with their changes were lost. The kernel and ironmap
//! refuse such metadata.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ironmap::fs::check::Finding;
use ironmap::iomap::MapFile;
use ironmap::units::FilePos;
use ironmap::{Error, ErrorKind, Volume};
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, setxattr};

use crate::common::command::{output, run};
use crate::common::image::Image;
use crate::common::skip::Need;
use crate::require;

/// The metadata to change, as commands of xfs_db, and the names of the fields that contain the log position.
const PLACES: [(&str, &str); 10] = [
    ("sb 0", "lsn"),
    ("agf 0", "lsn"),
    ("agi 0", "lsn"),
    ("agi 0;addr root", "lsn"),
    ("path /dir;dblock 0", "dhdr.hdr.lsn"),
    ("path /dir;dblock 8388608", "lhdr.info.lsn"),
    ("path /map;addr u3.bmbt.ptrs[1]", "lsn"),
    ("path /attributes;ablock 0", "hdr.info.lsn"),
    ("path /link;dblock 0", "lsn"),
    // Linux does not check the log position in an inode. So it accepts this change.
    ("path /map", "v3.lsn"),
];
/// The metadata that Linux needs for a read and ironmap does not need: the hash index of a directory.
const NOT_NEEDED: [&str; 1] = ["path /dir;dblock 8388608"];
/// A log position that this volume never reaches.
const AHEAD: &str = "0x900000001";
const NAMES: u32 = 400;
/// A shell command that reads the metadata below a mount point.
const WALK: &str =
    "cd \"$0\" && ls dir && cat dir/name-7 map && readlink link && getfattr -d -m - attributes";

fn fill(root: &Path) {
    std::fs::create_dir(root.join("dir")).unwrap();
    for number in 0..NAMES {
        std::fs::write(root.join(format!("dir/name-{number}")), "content").unwrap();
    }
    let file = File::create_new(root.join("map")).unwrap();
    for number in 0..100 {
        file.write_all_at(&[7; 8192], number * 8192).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, number * 8192, 4096).unwrap();
    }
    let file = root.join("attributes");
    File::create_new(&file).unwrap();
    for number in 0..30 {
        setxattr(&file, format!("user.{number}"), &[7; 60], XattrFlags::empty()).unwrap();
    }
    std::os::unix::fs::symlink("t".repeat(900), root.join("link")).unwrap();
}

fn read(volume: &Volume) -> ironmap::Result<()> {
    let root = volume.fs().inode(volume.fs().root())?;
    let dir = root.lookup(b"dir")?;
    for number in 0..NAMES {
        dir.lookup(format!("name-{number}").as_bytes())?;
    }
    for name in ["map", "attributes", "link"] {
        let inode = root.lookup(name.as_bytes())?;
        inode.xattrs()?;
        if name == "map" {
            inode.map(FilePos(0), 1)?;
        }
        if name == "link" {
            inode.read_link()?;
        }
    }
    Ok(())
}

/// Whether the kernel can mount the image read-only and then read the metadata.
fn kernel_reads(image: &Image) -> bool {
    let Ok(mount) = image.try_mount("ro") else { return false };
    output("sh", &["-c", WALK, mount.dir().to_str().unwrap()]).status.success()
}

fn is_named(error: &Error) -> bool {
    error.kind() == ErrorKind::Corrupt && error.to_string().contains("past the head of the log")
}

#[test]
fn metadata_ahead_of_the_log_are_refused() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_db"), Need::Tool("xfs_io")]);
    let image = Image::mkfs_xfs("320M", &["-m", "rmapbt=1"]).unwrap();
    fill(image.mount("rw").dir());
    for is_dirty in [false, true] {
        if is_dirty {
            let mount = image.mount("rw");
            std::fs::write(mount.dir().join("dir/one-more"), "content").unwrap();
            run("xfs_io", &["-x", "-c", "shutdown -f", mount.dir().to_str().unwrap()]);
        }
        read(&image.open().unwrap()).unwrap();
        let places = if is_dirty { &PLACES[..5] } else { &PLACES[..] };
        for (place, field) in places {
            let what = format!("{place}: {field}, dirty: {is_dirty}");
            let copy = Image::no_xfs();
            run("cp", &["--sparse=auto".into(), image.path(), copy.path()]);
            let mut args = vec!["-x".to_owned()];
            let write = format!("write -d {field} {AHEAD}");
            for command in place.split(';').chain([&write[..]]) {
                args.extend(["-c".to_owned(), command.to_owned()]);
            }
            args.push(copy.path().to_str().unwrap().to_owned());
            run("xfs_db", &args);
            let ours = copy.open().and_then(|volume| read(&volume));
            let checked = copy.open().map(|volume| volume.fs().check(&mut |_| {}).unwrap());
            let is_found = |finding: &Finding| finding.to_string().contains("past the head");
            match &checked {
                Ok(report) => assert!(report.findings.iter().any(is_found), "{what}: {report:?}"),
                Err(error) => assert!(is_named(error), "{what}: {error}"),
            }
            if let Err(error) = &ours {
                assert!(is_named(error), "{what}: {error}");
            }
            let by_kernel = kernel_reads(&copy);
            if NOT_NEEDED.contains(place) {
                // ironmap reads the volume without the hash index of the directory. The test has already asserted that the check finds the
                // damage.
                assert!(ours.is_ok() || !by_kernel, "{what}: {ours:?}");
            } else {
                assert_eq!(ours.is_ok(), by_kernel, "{what}: {ours:?}");
            }
        }
    }
}

/// An older copy of the volume's log is refused. A log of zeros is refused too.
#[test]
fn a_log_that_is_older_than_its_volume_is_refused() {
    require!([Need::Root, Need::Tool("mkfs.xfs")]);
    let image = Image::mkfs_xfs("320M", &[]).unwrap();
    let (start, len) = {
        let mut sector = [0; 512];
        File::open(image.path()).unwrap().read_exact_at(&mut sector, 0).unwrap();
        let layout = crate::common::xfs::Layout::of(&File::open(image.path()).unwrap());
        let number = u64::from_be_bytes(sector[48..56].try_into().unwrap());
        let blocks = u32::from_be_bytes(sector[96..100].try_into().unwrap());
        (layout.place_of_block(number), u64::from(blocks) * layout.block)
    };
    let mut old = vec![0; len as usize];
    File::open(image.path()).unwrap().read_exact_at(&mut old, start).unwrap();
    fill(image.mount("rw").dir());
    assert!(kernel_reads(&image) && image.open().is_ok());
    for (what, log) in [("older", old), ("zeros", vec![0; len as usize])] {
        File::options().write(true).open(image.path()).unwrap().write_all_at(&log, start).unwrap();
        let error = image.open().err().unwrap_or_else(|| panic!("{what}: opened"));
        assert!(is_named(&error), "{what}: {error}");
        assert!(!kernel_reads(&image), "{what}");
    }
}
