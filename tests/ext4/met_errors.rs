//! If ironmap finds corruption on a volume that is open for writing, it records the error in the superblock, as the kernel does. dumpe2fs
//! shows the record. The setting of `tune2fs -e` determines how the volume can be used after an error. On an undamaged volume, on a
//! read-only volume, and after an invalid request, ironmap records no error.

use crate::require;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::beneath::over_faulty;
use crate::common::command::{output, run};
use crate::common::image::{Image, words};
use crate::common::skip::Need;
use ironmap::device::{Entry, Faults, Ram, Record, Sim};
use ironmap::fs::ext4::{OnError, ROOT};
use ironmap::fs::{
    Clock, Credentials, DirCursor, Fallocate, FileSystem, Follow, InodeFlags, KeepSetId, NewFile,
    SetAttributes, SetXattr,
};
use ironmap::units::{FilePos, InodeNo};
use ironmap::{Error, ErrorKind, File, FileOptions, Queue, QueueOptions, Result, Volume};

const BLOCK: usize = 1024;
const HITS: usize = 1000;

/// The inode and the block that the test damages.
struct Broken {
    inode: u64,
    block: u64,
}

/// A volume with `/good`, `/sparse`, `/bad` and `/dir/below`. The extents of `/sparse` do not fit into the inode.
fn image(mkfs: &str) -> Image {
    let image = Image::in_memory("24M", &words(&format!("-t ext4 -b {BLOCK} {mkfs}")));
    std::fs::write(image.beside("text"), vec![b'x'; 4 * BLOCK]).unwrap();
    let text = image.beside("text").display().to_string();
    image.debugfs(&format!(
        "write {text} good\nwrite {text} bad\nmkdir dir\ncd dir\nwrite {text} below\n"
    ));
    let sparse = std::fs::File::create(image.beside("sparse")).unwrap();
    for piece in 0..32 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"data", piece * 8 * BLOCK as u64)
            .unwrap();
    }
    image.debugfs(&format!("write {} sparse\n", image.beside("sparse").display()));
    image.check();
    image
}

/// The first number after the given word in the output of debugfs.
fn number(said: &str, before: &str) -> u64 {
    let (_, rest) = said.split_once(before).unwrap_or_else(|| panic!("no {before}: {said}"));
    let end = rest.find(|c: char| !c.is_ascii_hexdigit() && c != 'x').unwrap_or(rest.len());
    match rest[..end].strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
        None => rest[..end].parse().unwrap(),
    }
}

fn flip(image: &Image, block: u64, at: u64) {
    let byte = image.block(block)[at as usize];
    image.poke_block(block, at, &[!byte]);
}

/// Changes the modification time of an inode, so that its checksum is wrong.
fn break_inode(image: &Image, path: &str) -> Broken {
    let said = image.ask_debugfs(&format!("imap {path}\n"));
    let block = number(&said, "located at block ");
    flip(image, block, number(&said, "offset ") + 0x10);
    Broken { inode: number(&said, "Inode "), block }
}

/// Makes the checksum of a directory's first block wrong.
fn break_directory(image: &Image, path: &str) -> Broken {
    let said = image.ask_debugfs(&format!("imap {path}\n"));
    let block = image.bmap(path, std::iter::once(0))[0];
    flip(image, block, BLOCK as u64 - 1);
    Broken { inode: number(&said, "Inode "), block }
}

/// Makes the checksum of a file's extent block wrong.
fn break_extents(image: &Image, path: &str) -> Broken {
    let said = image.ask_debugfs(&format!("imap {path}\nstat {path}\n"));
    let block = number(&said, "(ETB0):");
    flip(image, block, 12);
    Broken { inode: number(&said, "Inode "), block }
}

/// The fields of the superblock, as dumpe2fs prints them.
fn fields(image: &Image) -> BTreeMap<String, String> {
    let said = String::from_utf8(run("dumpe2fs", &["-h".as_ref(), image.path().as_os_str()]));
    let said = said.unwrap();
    let fields = said.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

fn field(image: &Image, name: &str) -> String {
    fields(image).remove(name).unwrap_or_default()
}

/// Asserts that e2fsck repairs all faults and clears the record of errors.
fn mended(image: &Image) {
    image.repair();
    image.check();
    assert_eq!(field(image, "FS Error count"), "");
    assert_eq!(field(image, "Filesystem state"), "clean");
}

/// An image in memory that is opened for writing. Its writes are counted.
struct Bench {
    image: Image,
    ram: Arc<Ram>,
    record: Arc<Record>,
    volume: Volume,
}

impl Bench {
    fn new(image: Image) -> Self {
        let ram = Arc::new(Ram::from_image(&std::fs::read(image.path()).unwrap()));
        let record = Arc::new(Record::new(Arc::clone(&ram) as _));
        let device = over_faulty(Arc::clone(&record) as _, &(Arc::clone(&ram) as _));
        let volume = Volume::writable_on(device, Clock::default()).unwrap();
        Self { image, ram, record, volume }
    }

    fn fs(&self) -> &Arc<dyn FileSystem> {
        self.volume.fs()
    }

    fn writes(&self) -> usize {
        let log = self.record.log();
        log.entries().iter().filter(|entry| matches!(entry, Entry::Write { .. })).count()
    }

    fn number(&self, path: &str) -> InodeNo {
        self.fs().resolve(path.as_bytes(), Follow::All).unwrap().number()
    }

    fn open(&self, path: &str) -> (File, Queue) {
        let inode = self.fs().resolve(path.as_bytes(), Follow::All).unwrap();
        let file = self.volume.open_inode(inode, FileOptions::new().write(true)).unwrap();
        (file, self.volume.queue(&QueueOptions::default()).unwrap())
    }

    fn create(&self, name: &str) -> Result<InodeNo> {
        let (name, who) = (name.as_bytes(), Credentials::default());
        self.fs().writable().unwrap().create(ROOT, name, NewFile::Regular, 0o644, &who)
    }

    /// Looks up a name in the root directory, as `ironmap mount` does.
    fn look_up(&self, name: &str) -> Result<InodeNo> {
        self.fs().lookup(ROOT, name.as_bytes()).map(|inode| inode.number())
    }

    /// Stores the device's present content as the image.
    fn stored(&self) -> &Image {
        let path = self.image.path();
        self.ram.store(&std::fs::File::options().write(true).open(path).unwrap()).unwrap();
        &self.image
    }

    /// Closes the volume, and then stores the device's content as the image.
    fn closed(self) -> Image {
        self.volume.close().unwrap();
        self.stored();
        self.image
    }
}

fn error<T>(result: Result<T>) -> Error {
    result.err().expect("an error")
}

fn corrupt<T>(result: Result<T>) {
    let error = error(result);
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

/// With the policy `continue`, the operation that finds the error fails, and all other operations succeed. This holds with and without a
/// journal. The record names the position of the first error and of the last error.
#[test]
fn continue_records_the_error_and_goes_on() {
    for journal in ["-e continue", "-e continue -O ^has_journal"] {
        let image = image(journal);
        let (first, last) = (break_inode(&image, "/bad"), break_directory(&image, "/dir"));
        let bench = Bench::new(image);
        corrupt(bench.look_up("bad"));
        corrupt(bench.fs().resolve(b"/dir/below", Follow::All));
        bench.create("new").unwrap();
        let (file, mut queue) = bench.open("/good");
        file.write_at(&mut queue, &[7; BLOCK], FilePos(0)).unwrap();
        drop((file, queue));
        let image = bench.closed();
        let said = fields(&image);
        let state =
            if journal.contains('^') { "not clean with errors" } else { "clean with errors" };
        for (name, value) in [
            ("Filesystem state", state.to_owned()),
            ("FS Error count", "2".to_owned()),
            ("First error function", "ironmap: inode".to_owned()),
            ("First error inode #", first.inode.to_string()),
            ("First error block #", first.block.to_string()),
            ("First error err", "EFSCORRUPTED".to_owned()),
            ("Last error function", "ironmap: directory block".to_owned()),
            ("Last error inode #", last.inode.to_string()),
            ("Last error block #", last.block.to_string()),
            ("Last error err", "EFSCORRUPTED".to_owned()),
        ] {
            assert_eq!(said.get(name), Some(&value), "{name}, {journal}: {said:#?}");
        }
        assert!(said.contains_key("First error time") && said.contains_key("Last error time"));
        mended(&image);
        assert_eq!(image.dump("/good")[..BLOCK], [7; BLOCK]);
        assert!(image.ask_debugfs("stat /new\n").contains("Type: regular"));
    }
}

/// With the policy `remount-ro`, all changes are refused after an error, and reads succeed. Data that were synced before the error are
/// durable. The journal contains an older copy of the superblock without the record of the error, but the record survives a recovery.
#[test]
fn remount_ro_refuses_changes_and_reads_on() {
    let image = image("-O ^orphan_file");
    image.tune2fs("-e remount-ro");
    break_inode(&image, "/bad");
    let bench = Bench::new(image);
    let (file, mut queue) = bench.open("/good");
    let number = bench.number("/good");
    bench.create("synced").unwrap();
    // The removal of an open file adds it to the list of orphans, whose head is in the superblock. So the journal gets a copy of the
    // superblock.
    let held = bench.fs().hold(bench.create("orphan").unwrap()).unwrap();
    bench.fs().writable().unwrap().unlink(ROOT, b"orphan").unwrap();
    bench.fs().sync().unwrap();
    file.write_at(&mut queue, &[7; BLOCK], FilePos(0)).unwrap();
    corrupt(bench.look_up("bad"));
    let writes = bench.writes();
    let refused = [
        error(bench.create("late")),
        error(file.write_at(&mut queue, &[8; BLOCK], FilePos(0))),
        error(bench.fs().writable().unwrap().truncate(number, 0)),
        error(bench.fs().sync()),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
        assert!(error.to_string().contains("checksum"), "it does not say why: {error}");
    }
    let mut read = [0; BLOCK];
    file.read_at(&mut queue, &mut read, FilePos(0)).unwrap();
    assert_eq!(read, [7; BLOCK]);
    assert_eq!(bench.number("/synced"), bench.look_up("synced").unwrap());
    corrupt(bench.look_up("bad"));
    drop((file, queue, held));
    assert_eq!(error(bench.volume.close()).kind(), ErrorKind::ReadOnly);
    assert_eq!(bench.writes(), writes, "a volume that is read-only was written to");
    let image = bench.stored();
    assert_eq!(field(image, "FS Error count"), "1");
    // The journal is recovered in three ways: by ironmap in memory, by ironmap to the device, and by e2fsck.
    let copy = image.copy();
    assert_eq!(copy.ext4().superblock().errors.count, 1);
    let copy = Bench::new(copy).closed();
    assert_eq!(field(&copy, "FS Error count"), "1");
    assert_eq!(field(&copy, "Filesystem state"), "clean with errors");
    for image in [image, &copy] {
        mended(image);
        assert!(image.ask_debugfs("stat /synced\n").contains("Type: regular"));
    }
}

/// With the policy `panic`, reads are refused too. The error messages name the reason.
#[test]
fn panic_refuses_everything() {
    let image = image("");
    image.tune2fs("-e panic");
    let broken = break_inode(&image, "/bad");
    let bench = Bench::new(image);
    let (file, mut queue) = bench.open("/good");
    let mut read = [0; BLOCK];
    file.read_at(&mut queue, &mut read, FilePos(0)).unwrap();
    bench.create("synced").unwrap();
    bench.fs().sync().unwrap();
    corrupt(bench.look_up("bad"));
    let refused = [
        error(file.read_at(&mut queue, &mut read, FilePos(0))),
        error(file.write_at(&mut queue, &read, FilePos(0))),
        error(bench.look_up("good")),
        error(bench.fs().resolve(b"/", Follow::All)),
        error(bench.fs().inspect(ROOT, |root| root.xattrs())),
        error(bench.fs().hold(ROOT)),
        error(bench.create("late")),
        error(bench.fs().sync()),
        error(bench.volume.close()),
    ];
    for error in refused {
        let said = error.to_string();
        assert!(said.contains("errors=panic") && said.contains("checksum"), "{said}");
    }
    drop((file, queue));
    let image = bench.stored();
    assert_eq!(field(image, "FS Error count"), "1");
    assert_eq!(field(image, "First error inode #"), broken.inode.to_string());
    mended(image);
    assert!(image.ask_debugfs("stat /synced\n").contains("Type: regular"));
}

type Operation = fn(&Bench, InodeNo) -> Result<()>;

/// If an operation finds an error, the error is counted once, even if the operation consists of other operations.
#[test]
fn every_operation_on_a_broken_inode_counts_once() {
    let on_inode: [(&str, Operation); 14] = [
        ("lookup", |bench, _| bench.look_up("bad").map(drop)),
        ("resolve", |bench, _| bench.fs().resolve(b"/bad", Follow::All).map(drop)),
        ("inspect", |bench, bad| bench.fs().inspect(bad, |_| Ok(()))),
        ("hold", |bench, bad| bench.fs().hold(bad).map(drop)),
        ("unlink", |bench, _| bench.fs().writable().unwrap().unlink(ROOT, b"bad")),
        ("link", |bench, bad| bench.fs().writable().unwrap().link(bad, ROOT, b"again")),
        ("truncate", |bench, bad| bench.fs().writable().unwrap().truncate(bad, 0)),
        ("write", |bench, bad| {
            bench.fs().writable().unwrap().write(bad, FilePos(0), b"text").map(drop)
        }),
        ("set_attributes", |bench, bad| {
            bench.fs().writable().unwrap().set_attributes(bad, &SetAttributes::default())
        }),
        ("strip_privileges", |bench, bad| {
            bench.fs().writable().unwrap().strip_privileges(bad, KeepSetId::No).map(drop)
        }),
        ("setxattr", |bench, bad| {
            bench.fs().writable().unwrap().setxattr(bad, b"user.a", b"b", SetXattr::Any)
        }),
        ("removexattr", |bench, bad| bench.fs().writable().unwrap().removexattr(bad, b"user.a")),
        ("set_flags", |bench, bad| {
            bench.fs().writable().unwrap().set_flags(bad, InodeFlags::NO_ATIME)
        }),
        ("fallocate", |bench, bad| {
            let how = Fallocate::Allocate { keep_size: false };
            bench.fs().writable().unwrap().fallocate(bad, how, FilePos(0), 4096)
        }),
    ];
    for (name, operation) in on_inode {
        counts(name, |image| break_inode(image, "/bad"), operation);
    }
}

/// Each operation that finds a broken directory block counts one error.
#[test]
fn every_operation_on_a_broken_directory_counts_once() {
    let on_directory: [(&str, Operation); 5] = [
        ("list", |bench, dir| {
            let dir = bench.fs().inode(dir)?;
            dir.list(DirCursor::START)?.try_for_each(|entry| entry.map(drop))
        }),
        ("lookup below", |bench, dir| bench.fs().lookup(dir, b"below").map(drop)),
        ("rename", |bench, dir| {
            let (from, to) = ((dir, &b"below"[..]), (ROOT, &b"above"[..]));
            bench.fs().writable().unwrap().rename(
                from,
                to,
                ironmap::fs::RenameFlags::empty(),
                &Credentials::default(),
            )
        }),
        ("create", |bench, dir| {
            let (who, file) = (Credentials::default(), NewFile::Regular);
            bench.fs().writable().unwrap().create(dir, b"new", file, 0o644, &who).map(drop)
        }),
        ("rmdir", |bench, _| bench.fs().writable().unwrap().rmdir(ROOT, b"dir")),
    ];
    for (name, operation) in on_directory {
        counts(name, |image| break_directory(image, "/dir"), operation);
    }
}

/// Each operation that finds a broken block of an extent tree counts one error.
#[test]
fn every_operation_on_broken_extents_counts_once() {
    let on_extents: [(&str, Operation); 3] = [
        ("read", |bench, _| {
            let (file, mut queue) = bench.open("/sparse");
            file.read_at(&mut queue, &mut [0; BLOCK], FilePos(0)).map(drop)
        }),
        ("overwrite", |bench, _| {
            let (file, mut queue) = bench.open("/sparse");
            file.write_at(&mut queue, &[7; BLOCK], FilePos(0)).map(drop)
        }),
        ("map", |bench, _| bench.open("/sparse").0.map(FilePos(0), 1).map(drop)),
    ];
    for (name, operation) in on_extents {
        counts(name, |image| break_extents(image, "/sparse"), operation);
    }
}

fn counts(
    name: &str,
    damage: impl Fn(&Image) -> Broken,
    operation: impl Fn(&Bench, InodeNo) -> Result<()>,
) {
    let image = image("");
    let broken = damage(&image);
    let bench = Bench::new(image);
    let failed = error(operation(&bench, InodeNo(broken.inode)));
    assert_eq!(failed.kind(), ErrorKind::Corrupt, "{name}: {failed}");
    let image = bench.closed();
    assert_eq!(field(&image, "FS Error count"), "1", "{name}: {failed}");
    assert_eq!(field(&image, "Last error block #"), broken.block.to_string(), "{name}: {failed}");
}

/// A thousand errors are counted as a thousand. Together they cause no more writes than one change.
#[test]
fn a_flood_of_errors_is_written_once() {
    let image = image("");
    break_inode(&image, "/bad");
    let bench = Bench::new(image);
    let before = bench.writes();
    for _ in 0..HITS {
        corrupt(bench.look_up("bad"));
    }
    assert_eq!(bench.writes(), before, "an error was written at once");
    bench.fs().sync().unwrap();
    let cost = bench.writes() - before;
    assert!(cost > 0 && cost < 8, "{cost} writes");
    let copy = bench.stored().copy();
    assert_eq!(copy.ext4().superblock().errors.count, HITS as u32, "not durable with the sync");
    let image = bench.closed();
    assert_eq!(field(&image, "FS Error count"), HITS.to_string());
    mended(&image);
}

/// After the journal is aborted, no transaction commits. The volume still writes the records of errors, and the error that aborted the
/// journal.
#[test]
fn an_error_that_ends_the_volume_loses_none_before_it() {
    let image = image("");
    break_inode(&image, "/bad");
    let per_block = BLOCK as u64 / 512;
    let log = image.bmap("<8>", 1..1000).into_iter().flat_map(|block| {
        let at = block * per_block;
        at..at + per_block
    });
    let ram = Arc::new(Ram::from_image(&std::fs::read(image.path()).unwrap()));
    let sim = Arc::new(Sim::new(Arc::clone(&ram) as _, Faults::default()));
    let device = over_faulty(Arc::clone(&sim) as _, &(Arc::clone(&ram) as _));
    let volume = Volume::writable_on(device, Clock::default()).unwrap();
    for _ in 0..3 {
        corrupt(volume.fs().lookup(ROOT, b"bad"));
    }
    sim.set_faults(Faults { bad_sectors: log.collect(), ..Faults::default() });
    error(volume.fs().sync());
    error(volume.close());
    drop(volume);
    ram.store(&std::fs::File::options().write(true).open(image.path()).unwrap()).unwrap();
    assert_eq!(field(&image, "FS Error count"), "4");
}

/// The commit timer writes the record of an error to the device while the volume stays open.
#[test]
fn an_error_reaches_the_device_in_time() {
    let image = image("");
    break_inode(&image, "/bad");
    let bench = Bench::new(image);
    let interval = std::time::Duration::from_millis(20);
    let _timer =
        ironmap::fs::ext4::CommitTimer::start(bench.volume.ext4().unwrap(), interval).unwrap();
    corrupt(bench.look_up("bad"));
    let begun = std::time::Instant::now();
    while bench.stored().copy().ext4().superblock().errors.count == 0 {
        assert!(begun.elapsed().as_secs() < 120, "it is in memory still");
        std::thread::yield_now();
    }
}

/// On an undamaged volume, no operation records an error. This includes invalid operations.
#[test]
fn a_sound_volume_and_wrong_questions_record_nothing() {
    let image = image("-e panic");
    let bench = Bench::new(image);
    for number in [0, 1 << 20, 1 << 40] {
        let asked = bench.fs().inspect(InodeNo(number), |_| Ok(()));
        assert_eq!(error(asked).kind(), ErrorKind::NotFound, "inode {number}");
    }
    assert_eq!(error(bench.look_up("none")).kind(), ErrorKind::NotFound);
    bench.fs().writable().unwrap().truncate(bench.number("/sparse"), 0).unwrap();
    bench.fs().writable().unwrap().unlink(bench.number("/dir"), b"below").unwrap();
    bench.fs().writable().unwrap().rmdir(ROOT, b"dir").unwrap();
    let image = bench.closed();
    assert_eq!(field(&image, "FS Error count"), "");
    assert_eq!(field(&image, "Filesystem state"), "clean");
    image.check();
}

/// ironmap never writes to a read-only volume, whatever error it finds and whatever value `s_errors` has.
#[test]
fn errors_met_on_a_read_only_volume_are_written_nowhere() {
    let image = image("-e panic");
    break_inode(&image, "/bad");
    let before = std::fs::read(image.path()).unwrap();
    let volume = image.open().unwrap();
    for _ in 0..2 {
        corrupt(volume.fs().lookup(ROOT, b"bad"));
        volume.fs().lookup(ROOT, b"good").unwrap();
    }
    volume.close().unwrap();
    drop(volume);
    assert!(std::fs::read(image.path()).unwrap() == before, "it was written to");
}

/// Each value of `s_errors`, even an unknown one, has the same effect as in the kernel. For the same errors, ironmap and the kernel record
/// the same count and the same positions.
#[test]
fn the_kernel_takes_and_records_the_same() {
    require!([Need::Root]);
    for (raw, policy) in [
        (0, OnError::RemountReadOnly),
        (1, OnError::Continue),
        (2, OnError::RemountReadOnly),
        (3, OnError::Panic),
        (7, OnError::RemountReadOnly),
    ] {
        let image = Image::mke2fs("24M", &words("-t ext4"));
        image.debugfs(&format!("ssv errors {raw}\n"));
        assert_eq!(image.ext4().superblock().on_error, policy, "{raw}");
        let mounted = image.mount("ro");
        let name = mounted.device().trim_start_matches("/dev/").to_owned();
        let options = std::fs::read_to_string(format!("/proc/fs/ext4/{name}/options")).unwrap();
        let expected = format!("errors={}", policy.name());
        assert!(options.lines().any(|line| line == expected), "{raw}: {options}");
    }
    let image = image("-e continue");
    let broken = break_inode(&image, "/bad");
    let copy = image.copy();
    let mounted = copy.mount("rw");
    let bench = Bench::new(image);
    for _ in 0..3 {
        assert!(!output("stat", &[mounted.dir().join("bad")]).status.success());
        corrupt(bench.look_up("bad"));
    }
    drop(mounted);
    let image = bench.closed();
    for name in ["Filesystem state", "FS Error count", "First error inode #", "Last error inode #"]
    {
        assert_eq!(field(&image, name), field(&copy, name), "{name}");
    }
    assert_eq!(field(&copy, "Last error inode #"), broken.inode.to_string());
}

/// A search for data or holes does not read the attributes. So a broken attribute block causes no error and no record.
#[test]
fn a_search_for_holes_meets_no_broken_attribute() {
    let image = image("");
    std::fs::write(image.beside("value"), vec![b'v'; 600]).unwrap();
    image.debugfs(&format!("ea_set -f {} good user.large\n", image.beside("value").display()));
    let block = number(&image.ask_debugfs("stat good\n"), "File ACL: ");
    flip(&image, block, 20);
    let bench = Bench::new(image);
    let (file, queue) = bench.open("/good");
    assert_eq!(file.seek_hole(FilePos(0)).unwrap(), Some(FilePos(4 * BLOCK as u64)));
    assert!(file.mappings().all(|iomap| iomap.is_ok()));
    drop((file, queue));
    corrupt(bench.fs().inspect(bench.number("/good"), |inode| inode.xattrs()));
    // The damaged attribute block is the only error in the record.
    assert_eq!(fields(&bench.closed())["FS Error count"], "1");
}
