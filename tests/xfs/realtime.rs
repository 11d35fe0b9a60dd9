//! Volumes with a realtime device: their names are listed, and content that lies there is refused by name.

use ironmap::fs::Follow;
use ironmap::units::FilePos;
use ironmap::{ErrorKind, FileOptions, QueueOptions};

use crate::common::command::run;
use crate::common::image::{Image, scratch, words};
use crate::common::skip::Need;
use crate::common::xfsprogs;
use crate::{SIZE, note, require};

const CONTENT: &[u8] = b"on the data device";

/// Realtime files come of xfs_db: neither mkfs.xfs nor every kernel makes them.
fn is_refused(mkfs: &str, options: &str) {
    let dir = scratch();
    let (content, device) = (dir.path().join("content"), dir.path().join("realtime"));
    std::fs::write(&content, CONTENT).unwrap();
    run("truncate", &["-s".as_ref(), SIZE.as_ref(), device.as_os_str()]);
    let file = format!("---644 0 0 {}", content.display());
    let prototype = dir.path().join("prototype");
    let text = format!("/dev/null\n0 0\nd--755 0 0\nplain {file}\nrealtime {file}\n$\n");
    std::fs::write(&prototype, text).unwrap();
    let device = format!("rtdev={}", device.display());
    let args = ["-r", &device, "-p", prototype.to_str().unwrap()];
    let image = Image::mkfs_xfs_by(mkfs, SIZE, &[&args[..], &words(options)].concat()).unwrap();
    let path = image.path();
    let db = if mkfs == "mkfs.xfs" { "xfs_db".to_owned() } else { xfsprogs::newer("xfs_db") };
    let set = ["-x", "-c", "path /realtime", "-c", "write -d core.realtime 1"];
    run(&db, &[&set[..], &[path.to_str().unwrap()]].concat());

    let volume = image.open().unwrap();
    assert!(volume.xfs().unwrap().superblock().realtime_blocks > 0, "{options}");
    let mut queue = volume.queue(&QueueOptions::default()).unwrap();
    let root = volume.fs().resolve(b"", Follow::All).unwrap();
    let names = root.read_dir().unwrap().map(|entry| entry.unwrap().name);
    let names: Vec<_> = names.filter(|name| name[0] != b'.').collect();
    assert_eq!(names, [&b"plain"[..], b"realtime"], "{options}");
    for (name, is_readable) in [(&b"plain"[..], true), (b"realtime", false)] {
        let inode = volume.fs().resolve(name, Follow::All).unwrap();
        assert_eq!(inode.size(), CONTENT.len() as u64, "{options}");
        let mut bytes = vec![0; CONTENT.len()];
        let read = volume
            .open_inode(inode, FileOptions::new())
            .and_then(|file| file.read_at(&mut queue, &mut bytes, FilePos(0)));
        if is_readable {
            read.unwrap();
            assert_eq!(bytes, CONTENT, "{options}");
        } else {
            let error = read.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{options}: {error}");
            assert!(error.to_string().contains("realtime device"), "{options}: {error}");
        }
    }
}

#[test]
fn content_on_a_realtime_device_is_refused() {
    require!([Need::Tool("mkfs.xfs"), Need::Tool("xfs_db")]);
    is_refused("mkfs.xfs", "-m reflink=0,rmapbt=0");
    if let Some(why) = Need::Variable(xfsprogs::VARIABLE).missing() {
        return note(&format!("groups of a realtime device: {why}"));
    }
    is_refused(&xfsprogs::newer("mkfs.xfs"), "-m metadir=1,reflink=0,rmapbt=0");
}
