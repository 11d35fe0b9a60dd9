//! All readers return the same answers.

use std::path::{Path, PathBuf};
use std::process::Command;

use diskann_disk::search::provider::aligned_file_reader::traits::{
    AlignedFileReader, AlignedReaderFactory,
};
use diskann_disk::search::provider::aligned_file_reader::{A512, AlignedRead};
use diskann_providers::storage::get_disk_index_file;
use ironmap::{Buffer, Host, HostOptions};
use ironmap_diskann::search::Parameters;
use ironmap_diskann::sources::Place;
use ironmap_diskann::{ReaderFactory, dataset, search};

const SEED: u64 = 3;
const VECTORS: usize = 5000;
const QUERIES: usize = 200;

/// A directory that is removed when the value is dropped.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let name = format!("ironmap-diskann-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).expect("a directory");
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The devices that devices.sh makes.
struct Devices(PathBuf);

impl Devices {
    fn up(dir: PathBuf, index: &str) -> Self {
        let devices = Self(dir);
        assert!(devices.script("up", index), "devices.sh up");
        devices
    }

    fn script(&self, verb: &str, index: &str) -> bool {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/devices.sh");
        let status = Command::new(script).arg(verb).arg(&self.0).arg(index).status();
        status.is_ok_and(|status| status.success())
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        assert!(self.script("down", ""), "devices.sh down");
    }
}

/// The reason why the devices cannot be made on this machine.
fn lack() -> Option<&'static str> {
    let succeeds = |program: &str, args: &[&str]| {
        Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
    };
    if !rustix::process::geteuid().is_root() {
        Some("loop devices need root")
    } else if !Path::new("/dev/loop-control").exists() {
        Some("there are no loop devices")
    } else if !succeeds("mkfs.xfs", &["-V"]) || !succeeds("mkfs.ext4", &["-V"]) {
        Some("mkfs.xfs or mkfs.ext4 is not installed")
    } else {
        None
    }
}

/// The searches return the same identifiers and the same distances, bit for bit, as with DiskANN's io_uring reader. The test covers each
/// device, with one thread and with several threads.
#[test]
fn answers_are_those_of_diskann() {
    if let Some(reason) = lack() {
        println!("SKIP answers_are_those_of_diskann: {reason}");
        return;
    }
    let dir = Dir::new("same");
    let prefix = dataset::build(&dir.0, SEED, VECTORS).expect("an index");
    let devices = Devices::up(dir.0.join("devices"), &get_disk_index_file(&prefix));
    let index = search::load(&prefix).expect("the index");
    let (base, queries) = (dataset::base(SEED, VECTORS), dataset::queries(SEED, QUERIES));
    let parameters = Parameters { l: 40, k: 10, beam: 4 };
    let place = Place { index: &index, devices: &devices.0, paged: false };
    for threads in [1, 3] {
        let mut expected = None;
        for source in place.open(threads).expect("the readers") {
            let found = (source.search)(&queries, parameters).expect("answers").answers;
            let expected = expected.get_or_insert_with(|| found.clone());
            assert!(*expected == found, "{} on {}, {threads} threads", source.reader, source.place);
        }
        let answers = expected.unwrap_or_default();
        let recall = search::recall(&base, &queries, &answers, parameters.k as usize);
        assert!(recall > 0.9, "a recall of {recall}: the index is not usable");
    }
}

/// A read past the end of the index returns an error, and does not return old memory. The file has one and a half blocks.
#[test]
fn a_short_index_is_an_error() {
    let dir = Dir::new("short");
    let path = dir.0.join("index");
    std::fs::write(&path, [7; 6144]).expect("a file");
    let host = Host::new(&HostOptions::new()).expect("a host");
    let file = host.open(&path).expect("the file");
    let mut reader = ReaderFactory::new(host, file).build().expect("a reader");

    let mut memory = Buffer::aligned(8192).expect("memory");
    let (first, second) = memory.split_at_mut(4096);
    let mut read = |pos, memory: &mut [u8]| {
        let request = AlignedRead::<u8, A512>::new(pos, memory).expect("an aligned request");
        reader.read(&mut [request])
    };
    read(0, first).expect("the first block");
    assert!(first.iter().all(|byte| *byte == 7));
    let error = read(4096, second).expect_err("half a block").to_string();
    assert!(error.contains("2048 of 4096 bytes at 4096"), "{error}");
}
