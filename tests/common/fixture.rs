//! A volume with every kind of file that is relevant for reads. The fixture also provides the expected content of the files, and the
//! engines that read the volume.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ironmap::device::{BlockFile, Device, Faults, OpenMode, Psync, Sim};
use ironmap::fs::Follow;
use ironmap::{Engine, File, FileOptions, Location, Volume, VolumeOptions};
use tempfile::TempDir;

use super::beneath::{self, chosen};
use super::image::{Image, scratch, scratch_in};
use super::rng::Rng;

/// A file of data without holes. Its size is not a multiple of any sector size or block size.
pub(crate) const SOLID: &str = "solid";
/// A file of data without holes. It has more extents than a queue can have requests in flight.
pub(crate) const FRAGMENTED: &str = "fragmented";
/// A file with alternating blocks of data and holes.
pub(crate) const HOLES: &str = "holes";
/// A file like `HOLES`, but with unwritten extents instead of holes. On the device, the blocks of these extents contain old data of other
/// files.
pub(crate) const UNWRITTEN: &str = "unwritten";
/// A file with a few blocks of data that are far apart.
pub(crate) const SPARSE: &str = "sparse";
/// A file of 5000 bytes. Its end is within a sector.
pub(crate) const TAIL: &str = "tail";
/// A file of a few bytes that are stored in the inode.
pub(crate) const INLINE: &str = "inline";
/// An empty file.
pub(crate) const EMPTY: &str = "empty";

/// The names of all files.
pub(crate) const FILES: [&str; 8] =
    [SOLID, FRAGMENTED, HOLES, UNWRITTEN, SPARSE, TAIL, INLINE, EMPTY];

/// The number of files of one block that are written before the other files. Half of them are removed. This leaves gaps, so later files are
/// fragmented.
const PADS: u64 = 200;
/// The number of files of one block that are written and removed. Unwritten extents later use their blocks.
const STALE: u64 = 200;

/// The volume in an image file.
pub(crate) struct Fixture {
    image: Image,
    /// A copy of the image in memory.
    shm: TempDir,
    contents: Vec<(&'static str, Vec<u8>)>,
    pub(crate) block: u64,
}

impl Fixture {
    /// A volume with blocks of this size. The seed determines the contents.
    pub(crate) fn new(block: u64, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let contents = contents(block, &mut rng);
        let source = scratch();
        let pads = source.path().join("pads");
        std::fs::create_dir(&pads).expect("a directory");
        for pad in 0..PADS + STALE {
            let stale = rng.bytes(block as usize);
            std::fs::write(pads.join(format!("{pad:03}")), stale).expect("a file");
        }
        let options = ["-t", "ext4", "-b", &block.to_string(), "-N", "1024", "-O", "inline_data"];
        let image = Image::mke2fs("64M", &options);
        image.debugfs(&commands(source.path(), block, &contents));
        image.check();
        let shm = scratch_in(Path::new("/dev/shm"));
        std::fs::copy(image.path(), shm.path().join("image")).expect("a copy of the image");
        Self { image, shm, contents, block }
    }

    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    /// The content of a file.
    pub(crate) fn content(&self, name: &str) -> &[u8] {
        let found = self.contents.iter().find(|(file, _)| *file == name);
        &found.unwrap_or_else(|| panic!("no file {name}")).1
    }

    pub(crate) fn volume(&self, stack: Stack) -> Volume {
        let (path, engine) = match stack {
            Stack::Psync => (self.image.path(), Engine::Psync),
            Stack::Uring => (self.image.path(), Engine::IoUring),
            Stack::Dax => (self.image.path(), Engine::Dax),
            Stack::DaxInMemory => (self.shm.path().join("image"), Engine::Dax),
            Stack::Null => (self.image.path(), Engine::Null),
            Stack::Sim => return self.sim(Faults::default()).1,
        };
        let location: Location = path.to_str().expect("a plain path").parse().expect("a location");
        let volume = beneath::open(&location, &VolumeOptions::new().engine(engine))
            .expect("open the volume");
        // If `IRONMAP_BENEATH` chooses a layer below the volume, the volume reports the engine `Auto`.
        let expected =
            if chosen().is_some() && engine != Engine::Null { Engine::Auto } else { engine };
        assert_eq!(volume.engine(), expected, "{:?}", volume.notices());
        volume
    }

    /// The volume on a simulated device that injects these faults.
    pub(crate) fn sim(&self, faults: Faults) -> (Arc<Sim>, Volume) {
        let file =
            BlockFile::open(&self.image.path(), &OpenMode::default()).expect("open the image");
        let held = Arc::new(Psync::new(Arc::new(file))) as Arc<dyn Device>;
        let sim = Arc::new(Sim::new(Arc::clone(&held), faults));
        let volume = Volume::on(beneath::over_faulty(sim.clone(), &held)).expect("open the volume");
        (sim, volume)
    }
}

/// The layers between a volume and its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    Psync,
    Uring,
    Dax,
    DaxInMemory,
    Null,
    Sim,
}

impl Stack {
    /// The engines that read the real content of the image.
    pub(crate) const REAL: [Self; 5] =
        [Self::Psync, Self::Uring, Self::Dax, Self::DaxInMemory, Self::Sim];
    /// The engines that have alignment rules for requests.
    pub(crate) const ALIGNED: [Self; 4] = [Self::Psync, Self::Uring, Self::Null, Self::Sim];
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Opens a file by its name. The map of the file is not yet in memory.
pub(crate) fn open(volume: &Volume, name: &str, strict: bool) -> File {
    let inode = volume.fs().resolve(name.as_bytes(), Follow::All).expect(name);
    volume.open_inode(inode, FileOptions::new().direct(strict)).expect(name)
}

fn contents(block: u64, rng: &mut Rng) -> Vec<(&'static str, Vec<u8>)> {
    let solid = rng.bytes((1 << 20) + 1000);
    let fragmented = rng.bytes((150 * block + 300) as usize);
    let mut scattered = |blocks: u64, one_in: u64| {
        let mut content = vec![0; (blocks * block) as usize];
        for piece in content.chunks_mut(block as usize) {
            if rng.below(one_in) == 0 {
                piece.copy_from_slice(&rng.bytes(block as usize));
            }
        }
        content
    };
    let (holes, unwritten, sparse) = (scattered(300, 2), scattered(300, 2), scattered(8000, 500));
    vec![
        (SOLID, solid),
        (FRAGMENTED, fragmented),
        (HOLES, holes),
        (UNWRITTEN, unwritten),
        (SPARSE, sparse),
        (TAIL, rng.bytes(5000)),
        (INLINE, rng.bytes(50)),
        (EMPTY, Vec::new()),
    ]
}

/// The debugfs commands that write the files. `source` is the directory with the contents of the files.
fn commands(source: &Path, block: u64, contents: &[(&'static str, Vec<u8>)]) -> String {
    let mut commands = String::new();
    let mut add = |command: String| commands.push_str(&(command + "\n"));
    let write = |name: &str| {
        let content = &contents.iter().find(|(file, _)| *file == name).expect(name).1;
        let size = content.len() as u64;
        let path = source.join(name);
        let write = format!("write {} {name}", path.display());
        if size <= block {
            write_sparse(&path, content, block);
            return write;
        }
        // The last block is written completely, with nonzero bytes after the content. After that, the size is set to the length of the
        // content, so the device has nonzero bytes past the end of the file. If the file ends with a hole, the new size also restores this
        // hole.
        let mut on_disk = content.clone();
        on_disk.resize(size.next_multiple_of(block) as usize, 0xEE);
        write_sparse(&path, &on_disk, block);
        format!("{write}\nset_inode_field {name} size {size}")
    };
    // A separate command writes each file, so that the order of the files is fixed. If mke2fs copied the directory, the order would be
    // arbitrary.
    for pad in 0..PADS + STALE {
        add(format!("write {}/pads/{pad:03} {pad:03}", source.display()));
    }
    for pad in (0..PADS).step_by(2) {
        add(format!("rm {pad:03}"));
    }
    add(write(FRAGMENTED));
    for pad in PADS..PADS + STALE {
        add(format!("rm {pad:03}"));
    }
    add(write(UNWRITTEN));
    add(format!("fallocate {UNWRITTEN} 0 {}", contents[3].1.len() as u64 / block - 1));
    for name in [SOLID, HOLES, SPARSE, TAIL, INLINE, EMPTY] {
        add(write(name));
    }
    commands
}

/// Writes all blocks except blocks of zeros, which become holes.
fn write_sparse(path: &Path, content: &[u8], block: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path).expect("a file");
    file.set_len(content.len() as u64).expect("its size");
    for (index, piece) in content.chunks(block as usize).enumerate() {
        if piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(piece, index as u64 * block).expect("its data");
        }
    }
}
