//! Tests a mount of a volume in the test format. A mount may use only the features that every format supports.

use std::fs::{self, File};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use fuser::{BackgroundSession, Session};
use ironmap::device::Ram;
use ironmap::fs::{FileSystem, Follow, Stat};
use rustix::fs::{FallocateFlags, XattrFlags};

use super::adapter::Server;
use super::{Mount, Options};
use crate::other_format::format::{Kind, MemFs};

const SIZE: u64 = 16 << 20;

/// A mount that lasts until the session is dropped.
fn mount(fs: &MemFs, dir: &Path) -> BackgroundSession {
    let (volume, options) = (fs.volume(), Options::default());
    let config = options.for_kernel("mem", true);
    let mount = Mount::new(volume, options, String::new()).unwrap();
    let notifier = Arc::clone(&mount.notifier);
    let server = Server::new(mount, 4);
    let connection = server.connection();
    let session = Session::new(server, dir, &config).unwrap();
    let _ = notifier.set(session.notifier());
    let _ = connection.set(session.as_fd().try_clone_to_owned().unwrap());
    session.spawn().unwrap()
}

fn stat(fs: &MemFs, path: &str) -> Stat {
    fs.resolve(path.as_bytes(), Follow::NotLast).unwrap().stat().clone()
}

fn skips() -> bool {
    let root = rustix::process::geteuid().is_root();
    let reason = if root { "needs /dev/fuse" } else { "needs root" };
    let skips = !root || !Path::new("/dev/fuse").exists();
    if skips {
        let line = format!("SKIP mount::programs_use_a_volume_of_another_format: {reason}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
        if let Some(log) = std::env::var_os("IRONMAP_SKIP_LOG") {
            let log = File::options().append(true).create(true).open(log);
            log.unwrap().write_all(line.as_bytes()).unwrap();
        }
    }
    skips
}

#[test]
fn programs_use_a_volume_of_another_format() {
    if skips() {
        return;
    }
    let fs = MemFs::new(Arc::new(Ram::new(SIZE)), Kind::WHOLE);
    let prefix = format!("ironmap-test-{}-", std::process::id());
    let dir = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    let mounted = mount(&fs, dir.path());

    fs::create_dir_all(at("a/b")).unwrap();
    symlink("b/file", at("a/link")).unwrap();
    let content: Vec<u8> = (0..300_001_u32).map(|byte| (byte % 251) as u8).collect();
    fs::write(at("a/b/file"), &content).unwrap();
    assert_eq!(fs::read(at("a/link")).unwrap(), content);
    fs::hard_link(at("a/b/file"), at("also")).unwrap();
    assert_eq!(fs::metadata(at("also")).unwrap().nlink(), 2);
    fs::set_permissions(at("also"), fs::Permissions::from_mode(0o640)).unwrap();
    rustix::fs::setxattr(at("also"), "user.colour", b"red", XattrFlags::CREATE).unwrap();
    assert_eq!(fs::rename(at("a"), at("a/b/a")).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(fs::remove_dir(at("a")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    fs::rename(at("a"), at("c")).unwrap();
    for number in 0..300 {
        File::create(at(&format!("c/{number}"))).unwrap();
    }
    assert_eq!(fs::read_dir(at("c")).unwrap().count(), 302);

    // The file is written, a hole is punched, and the file is truncated and extended again.
    let mut file = File::options().read(true).write(true).open(at("also")).unwrap();
    file.write_all_at(b"0123", 1000).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 8192, 65536).unwrap();
    file.set_len(200_000).unwrap();
    file.set_len(250_000).unwrap();
    file.sync_all().unwrap();
    let mut expected = content;
    expected[1000..1004].copy_from_slice(b"0123");
    expected[8192..8192 + 65536].fill(0);
    expected[200_000..].fill(0);
    expected.truncate(250_000);
    assert_eq!(fs::read(at("c/link")).unwrap(), expected);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap(), 8192);

    // A file without a name exists as long as it is open.
    fs::remove_file(at("also")).unwrap();
    fs::remove_file(at("c/b/file")).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let mut kept = vec![0; 1004];
    file.read_exact_at(&mut kept, 0).unwrap();
    assert_eq!(kept, expected[..1004]);
    fs::write(at("left"), b"last content").unwrap();
    drop(file);
    mounted.umount_and_join().unwrap();

    fs.sync().unwrap();
    assert_eq!(stat(&fs, "/left").size, 12);
    assert_eq!(fs.usage().free.blocks, SIZE / 4096 - 1, "all other blocks were freed");
    let link = fs.resolve(b"/c/link", Follow::NotLast).unwrap();
    assert_eq!(link.read_link().unwrap(), b"b/file");
}
