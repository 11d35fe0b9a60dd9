//! Files of mounted file systems. While ironmap holds a valid lease on a file, ironmap reads the file from the device. Without a lease, it
//! reads the file through the kernel. The content is correct in each case.

use crate::require;
use std::fs::{File as OsFile, OpenOptions as OsOptions};
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;

use crate::common::command::{output, run};
use crate::common::image::scratch;
use crate::common::mounted::Mounted;
use crate::common::skip::Need;
use ironmap::dio::DioFlags;
use ironmap::fs::Timestamp;
use ironmap::fs::host::Refusal;
use ironmap::units::FilePos;
use ironmap::{Errno, ErrorKind, File, FileOptions, Host, HostOptions, Queue, QueueOptions};

/// Data in which each word of eight bytes contains its position and a version.
fn content(len: usize, version: u64) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(|word| (word ^ version << 48).to_le_bytes()).collect()
}

fn host() -> (Host, Queue) {
    let host = Host::new(&HostOptions::default()).unwrap();
    let queue = host.queue(&QueueOptions::default()).unwrap();
    (host, queue)
}

fn read_all(file: &File, queue: &mut Queue) -> Vec<u8> {
    let mut bytes = vec![0; file.size() as usize + 100];
    let count = file.read_at(queue, &mut bytes, FilePos(0)).unwrap();
    bytes.truncate(count);
    bytes
}

#[test]
fn files_of_ext4_and_xfs_are_read_raw_without_writers() {
    require!([Need::Root, Need::Tool("losetup"), Need::Tool("mkfs.xfs")]);
    for mounted in [Mounted::ext4(), Mounted::xfs()] {
        let first = content(1 << 20, 1);
        let path = mounted.write("file", &first);
        let (host, mut queue) = host();
        let file = host.open_with(&path, FileOptions::default()).unwrap();
        let report = file.host().unwrap();
        assert!(report.is_raw(), "{report:?}");
        assert!(read_all(&file, &mut queue) == first);
        assert_eq!(queue.stats().kernel_served, 0);

        // ironmap reads the file directly from the device (raw) while another process reads the file, but not while another process can
        // write to it.
        assert!(std::fs::read(&path).unwrap() == first);
        let writer = OsOptions::new().write(true).open(&path).unwrap();
        let report = file.host().unwrap();
        assert_eq!((report.refusal, report.breaks), (Some(Refusal::Broken), 1));
        let second = content(1 << 20, 2);
        writer.write_all_at(&second, 0).unwrap();
        assert!(read_all(&file, &mut queue) == second);
        assert!(queue.stats().kernel_served > 0);

        drop(writer);
        // The next reads acquire the lease of the file again.
        while !file.host().unwrap().is_raw() {
            assert!(read_all(&file, &mut queue) == second);
        }
        let served = queue.stats().kernel_served;
        assert!(read_all(&file, &mut queue) == second);
        assert_eq!(queue.stats().kernel_served, served);
        drop(OsFile::open(&path).unwrap());
    }
}

/// A vectored read does not change the lengths of the caller's slices. ironmap needs the unchanged slices if the lease was lost during a
/// read from the device: it then discards the result, and repeats the read into the same slices.
#[test]
fn a_vectored_read_leaves_its_slices_as_they_were() {
    require!([Need::Root, Need::Tool("losetup")]);
    let mounted = Mounted::ext4();
    let expected = content(8200, 1);
    let path = mounted.write("file", &expected);
    let (host, mut queue) = host();
    let file = host.open_with(&path, FileOptions::default()).unwrap();
    for raw in [true, false] {
        let writer = (!raw).then(|| OsOptions::new().write(true).open(&path).unwrap());
        assert_eq!(file.host().unwrap().is_raw(), raw);
        let (mut head, mut tail) = ([0; 100], [0; 10_000]);
        let mut slices = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)];
        let flags = DioFlags::empty();
        for _ in 0..2 {
            let count = file.read_vectored_at(&mut queue, &mut slices, FilePos(8), flags).unwrap();
            assert_eq!((count, slices[0].len(), slices[1].len()), (8192, 100, 10_000));
            assert!(slices[0][..] == expected[8..108] && slices[1][..8092] == expected[108..]);
        }
        drop(writer);
    }
}

/// The attributes of a file on a mounted file system are those that `stat` prints. The generation is the number that `lsattr -v` prints, or
/// 0 if the file system has none.
#[test]
fn attributes_are_those_of_other_programs() {
    require!([Need::Tool("stat"), Need::Tool("lsattr")]);
    let host = Host::new(&HostOptions::new()).unwrap();
    let dir = scratch();
    let path = dir.path().join("file");
    std::fs::write(&path, [1; 5000]).unwrap();
    let found = host.metadata(&path).unwrap();
    let name = path.to_str().unwrap();
    let printed = run("stat", &["-c", "%i %f %h %u %g %s %b %o %.9Y %.9Z", name]);
    let time = |time: Timestamp| format!("{}.{:09}", time.seconds, time.nanoseconds);
    let (ino, mode) = (found.inode.0, found.mode);
    let (links, uid, gid, size) = (found.links, found.uid, found.gid, found.size);
    let (blocks, block) = (found.blocks, found.block_size);
    let (modified, changed) = (time(found.modified), time(found.changed));
    let expected = format!(
        "{ino} {mode:x} {links} {uid} {gid} {size} {blocks} {block} {modified} {changed}\n"
    );
    assert_eq!(String::from_utf8_lossy(&printed), expected);
    let listed = output("lsattr", &["-v", name]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let generation = listed.split_whitespace().next().map_or(0, |first| first.parse().unwrap());
    assert_eq!(found.generation, generation);

    let missing = host.metadata(dir.path().join("missing")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Io(Errno::ENOENT));
    assert!(missing.to_string().contains("missing"), "{missing}");
    assert_eq!(host.metadata("/dev/null").unwrap().device, Some((1, 3)));
}
