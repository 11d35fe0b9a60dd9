//! Writes that would change metadata. Such a write changes nothing and returns an error that names the reason.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use crate::common::command::run;
use crate::common::skip::Need;
use crate::{filled, for_writing, known, open, require};
use ironmap::dio::DioFlags;
use ironmap::fs::Follow;
use ironmap::units::InodeNo;
use ironmap::{Error, ErrorKind, File as Handle, FileOptions, QueueOptions, Volume};

fn handle(volume: &Volume, name: &str, options: FileOptions) -> Handle {
    let inode = volume.fs().resolve(name.as_bytes(), Follow::All).unwrap();
    volume.open_inode(inode, options).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn assert_says(result: Result<impl std::fmt::Debug, Error>, kind: ErrorKind, says: &str) {
    let error = result.expect_err(says);
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{error}, not {says:?}");
}

#[test]
fn operations_that_need_the_log_are_refused_by_name() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("chattr"), Need::Tool("setcap")]);
    let Some(image) = filled(&[], 4096) else { return };
    {
        let mount = image.mount("noatime");
        let make = |name: &str| std::fs::write(mount.dir().join(name), [7; 8192]).unwrap();
        ["immutable", "append", "set-id", "set-gid", "capable"].into_iter().for_each(make);
        let mode = |name: &str, mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(mount.dir().join(name), mode).unwrap();
        };
        mode("set-id", 0o4755);
        mode("set-gid", 0o2755);
        run("setcap", &["cap_net_raw+ep".as_ref(), mount.dir().join("capable").as_os_str()]);
        run("chattr", &["+i".as_ref(), mount.dir().join("immutable").as_os_str()]);
        run("chattr", &["+a".as_ref(), mount.dir().join("append").as_os_str()]);
    }
    let before = std::fs::read(image.path()).unwrap();
    let volume = open(&image).unwrap();
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    use ErrorKind::{NotPermitted, ReadOnly, Unsupported, WouldBlock};
    for (name, pos, len, kind, says) in [
        ("mixed", 4096, 4096, Unsupported, "never written"),
        ("mixed", 4097, 5, Unsupported, "never written"),
        ("mixed", 0, 12288, Unsupported, "never written"),
        ("mixed", 80 * 4096, 4096, Unsupported, "a hole"),
        ("mixed", 101 * 4096, 4096, Unsupported, "past the end"),
        ("shared", 2 * 4096, 4096, Unsupported, "share"),
        ("copy", 2 * 4096, 512, Unsupported, "share"),
        ("copy", 0, 3 * 4096, Unsupported, "share"),
        ("small", 7, 1, Unsupported, "past the end"),
        ("small", 0, 512, Unsupported, "past the end"),
        ("whole", u64::MAX - 3, 512, Unsupported, "past the end"),
        ("immutable", 0, 4096, NotPermitted, "immutable"),
        ("append", 0, 4096, NotPermitted, "append-only"),
        ("set-id", 0, 4096, Unsupported, "set-id"),
        ("set-gid", 0, 4096, Unsupported, "set-id"),
        ("capable", 0, 4096, Unsupported, "capabilities"),
    ] {
        let file = handle(&volume, name, for_writing());
        let bytes = vec![9; len];
        assert_says(file.write_at(&mut queue, &bytes, pos), kind, says);
    }
    let file = handle(&volume, "whole", for_writing());
    assert_says(file.append(&mut queue, &[1; 512], DioFlags::empty()), Unsupported, "past the end");
    let fresh = handle(&volume, "pieces", for_writing());
    // The new handle has not read the map of the file yet.
    let refused = fresh.write_at_with(&mut queue, &[1; 4096], 0, DioFlags::NOWAIT);
    assert_eq!(refused.unwrap_err().kind(), WouldBlock);
    let fs = volume.fs();
    let number = file.inode();
    let data = "only the data of files can be overwritten";
    assert_says(fs.writable().map(drop), ReadOnly, data);
    assert_says(volume.remove_file("/whole"), ReadOnly, data);
    let inode = fs.inode(number).unwrap();
    let cut = volume.open_inode(inode, for_writing().truncate(true)).err().unwrap();
    assert_says(Err::<(), _>(cut), ReadOnly, data);
    // The internal files of the file system have no names. They can only be opened by inode number.
    for number in [129, 130] {
        let file = volume.open_inode(InodeNo(number), for_writing()).unwrap();
        assert_says(file.write_at(&mut queue, &[0; 1], 0), NotPermitted, "file system's own");
    }
    drop((file, fresh, queue));
    volume.close().unwrap();
    drop(volume);
    assert!(before == std::fs::read(image.path()).unwrap(), "the image was written");
}

/// If the writer has the privilege to keep set-id bits, a write does not remove them.
#[test]
fn set_id_bits_are_kept_for_privileged_writers() {
    require!([Need::Root, Need::Tool("mkfs.xfs")]);
    let Some(image) = filled(&[], 4096) else { return };
    {
        let mount = image.mount("noatime");
        let mode = std::fs::Permissions::from_mode(0o6755);
        std::fs::set_permissions(mount.dir().join("whole"), mode).unwrap();
    }
    let volume = open(&image).unwrap();
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let options = for_writing().keep_set_id(ironmap::fs::KeepSetId::Yes);
    handle(&volume, "whole", options).write_all_at(&mut queue, &[3; 4096], 0).unwrap();
    drop(queue);
    volume.close().unwrap();
    drop(volume);
    let mount = image.mount("ro");
    let file = mount.dir().join("whole");
    assert_eq!(std::fs::read(&file).unwrap()[..4096], [3; 4096]);
    assert_eq!(std::fs::metadata(file).unwrap().mode() & 0o7777, 0o6755);
}

/// An open for writing is refused in three cases: the log needs recovery, the log is on a separate device, or the volume has a feature that
/// is supported only for reading.
#[test]
fn volumes_that_are_only_read_are_not_opened_for_writing() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("xfs_io"), Need::Tool("xfs_db")]);
    let Some(image) = filled(&[], 4096) else { return };
    let clean = image.copy();
    {
        let mount = image.mount("noatime");
        std::fs::write(mount.dir().join("new"), [1; 5000]).unwrap();
        File::open(mount.dir().join("new")).unwrap().sync_all().unwrap();
        run(
            "xfs_io",
            &["-x".as_ref(), "-c".as_ref(), "shutdown".as_ref(), mount.dir().as_os_str()],
        );
    }
    let before = std::fs::read(image.path()).unwrap();
    assert_says(open(&image).map(drop), ErrorKind::ReadOnly, "recovered first");
    image.open().unwrap();
    assert!(before == std::fs::read(image.path()).unwrap(), "the image was written");

    // Bit 31 of `sb_features_ro_compat` is set, with a valid checksum.
    let mut sector = vec![0; 512];
    let file = File::options().read(true).write(true).open(clean.path()).unwrap();
    file.read_exact_at(&mut sector, 0).unwrap();
    sector[0xd4] |= 0x80;
    sector[224..228].fill(0);
    let sum = crc32c::crc32c(&sector);
    sector[224..228].copy_from_slice(&sum.to_le_bytes());
    file.write_all_at(&sector, 0).unwrap();
    drop(file);
    assert_says(open(&clean).map(drop), ErrorKind::ReadOnly, "0x80000000");
    clean.open().unwrap();

    let outside = crate::common::image::scratch();
    let log = outside.path().join("log");
    run("truncate", &["-s".as_ref(), "128M".as_ref(), log.as_os_str()]);
    let on_log = format!("logdev={},size=64m", log.display());
    let image = ironmap_image(&["-l", &on_log]);
    assert_says(
        open(&image).map(drop),
        ErrorKind::Unsupported,
        "the log of the XFS volume is on a separate device",
    );
}

fn ironmap_image(options: &[&str]) -> crate::common::image::Image {
    crate::common::image::Image::mkfs_xfs(crate::SIZE, options).unwrap()
}

/// A file shares most of its blocks. Overwrites of its other blocks take the same path as overwrites of a file that shares none.
#[test]
fn own_blocks_of_a_file_that_shares_others_take_the_simple_path() {
    require!([Need::Root, Need::Tool("mkfs.xfs"), Need::Tool("filefrag")]);
    let Some(image) = filled(&[], 4096) else { return };
    let files = known(&image);
    let Some(copy) = files.get("copy") else { return };
    let volume = open(&image).unwrap();
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let mut bytes = ironmap::bio::Buffer::aligned(4096).unwrap();
    bytes.fill(9);
    let mut overwrites = |name: &str, blocks: &[u64]| {
        let file = handle(&volume, name, for_writing());
        // The first write reads the map.
        file.write_at(&mut queue, &bytes, blocks[0] * 4096).unwrap();
        let before = queue.stats().overwrites;
        for block in blocks {
            file.write_at(&mut queue, &bytes, block * 4096).unwrap();
        }
        queue.stats().overwrites - before
    };
    let blocks = [0, 1, 9, 30, 63];
    assert_eq!(overwrites("whole", &blocks), 5);
    assert_eq!(overwrites("copy", &blocks), 5);
    let file = handle(&volume, "copy", for_writing());
    let refused = file.write_at(&mut queue, &bytes, 2 * 4096);
    assert_says(refused, ErrorKind::Unsupported, "share");
    let mut content = copy.content.clone();
    for block in blocks {
        content[block as usize * 4096..][..4096].fill(9);
    }
    assert!(volume.read("/copy").unwrap() == content);
    drop((file, queue));
    volume.close().unwrap();
    let now = known(&image);
    assert!(now["copy"].content == content && now["shared"].content == files["shared"].content);
}
