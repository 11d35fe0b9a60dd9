//! `ironmap demo`: copies a directory tree into an image, reads it back, compares it, and measures the reads.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use ironmap::fs::{FileType, Follow, Inode};
use ironmap::sorting::Sorting;
use ironmap::units::FilePos;
use ironmap::{Location, Queue};
use ironmap_image::source::{Source, join};
use ironmap_image::transfer;
use ironmap_image::{Failure, Report};

use crate::output::progress;
use crate::terminal::{one_line, print_line, stdout};

/// The candidates for the default tree. The first candidate that exists is copied, up to `MAX_FILES` files and `MAX_BYTES` bytes.
const TREES: [&str; 3] = ["/usr/include", "/usr/share/doc", "/etc"];
const MAX_FILES: usize = 4000;
const MAX_BYTES: u64 = 64 << 20;
/// The maximum number of lines of the listing.
const SHOWN: usize = 12;

/// Makes an ext4 image of a directory tree, reads and compares every file, and measures the reads
///
/// The output directory gets the image, the table, the results as JSON, and a picture. Without root, the image is measured as a file in
/// memory. With root, it is measured on RAM disks and compared with the kernel's file system.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap demo
  ironmap demo --tree /usr/share/doc --out /tmp/demo")]
pub(crate) struct Args {
    /// The tree to copy into the image. Only a part of a large tree is copied
    #[arg(long)]
    tree: Option<PathBuf>,
    /// The output directory
    #[arg(long, default_value = "demo-out")]
    out: PathBuf,
}

/// Runs another command of the program.
type RunCommand = fn(&[&str], &mut Report) -> Result<(), Failure>;

pub(crate) fn run(args: &Args, report: &mut Report, subcommand: RunCommand) -> Result<(), Failure> {
    let out = &args.out;
    let (copy, image) = (out.join("tree"), out.join("demo.img"));
    if out.exists() && !image.exists() && fs::read_dir(out).map_err(host(out))?.next().is_some() {
        return Err(Failure::new(format!(
            "{}: the directory exists, but was not made by an earlier demo",
            out.display()
        )));
    }
    let _ = fs::remove_dir_all(&copy);
    fs::create_dir_all(&copy).map_err(host(&copy))?;

    let found = TREES.map(Path::new).into_iter().find(|tree| tree.is_dir());
    let Some(tree) = args.tree.as_deref().or(found) else {
        return Err(Failure::new("no directory tree to copy was found: name a tree with --tree"));
    };
    heading(&format!("an ext4 image of {}", one_line(&tree.display().to_string())))?;
    let mut taken = Taken::default();
    taken.directory(tree, &copy)?;
    make_image(&copy, &image, taken.bytes, taken.files.len())?;
    say(&format!("{} files, {} bytes in {}", taken.files.len(), taken.bytes, image.display()))?;

    let location = Location::parse(image.as_os_str()).map_err(|error| Failure::open(&error))?;
    let source = Source::open(&location, report.context())?;
    heading("the listing of the volume, read without a mount")?;
    list(&source)?;
    heading("all files are read back and compared with the originals")?;
    compare(&source, &copy, &taken)?;
    heading("the extents of the largest file")?;
    drop(source);
    if let Some(largest) = &taken.largest {
        let target = format!("{}:/{}", image.display(), largest.1.display());
        subcommand(&["map", &target], report)?;
    }
    heading("a comparison: the raw device, and ironmap without and with the simple path")?;
    measure(out, report, subcommand)?;
    say(&format!("\nfiles in {}: demo.img, bench.json, bench.svg", out.display()))
}

/// The part of the tree that was copied into the image.
#[derive(Default)]
struct Taken {
    /// The paths of the copied files, relative to the copy.
    files: Vec<PathBuf>,
    bytes: u64,
    largest: Option<(u64, PathBuf)>,
}

impl Taken {
    /// Copies a directory, file by file, until a limit is reached.
    fn directory(&mut self, from: &Path, to: &Path) -> Result<(), Failure> {
        let mut pending = vec![PathBuf::new()];
        while let Some(dir) = pending.pop() {
            fs::create_dir_all(to.join(&dir)).map_err(host(&to.join(&dir)))?;
            let Ok(entries) = fs::read_dir(from.join(&dir)) else { continue };
            let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
            names.order();
            for name in names {
                let path = dir.join(name);
                let Ok(found) = fs::symlink_metadata(from.join(&path)) else { continue };
                if found.is_dir() {
                    pending.push(path);
                } else if found.is_symlink() {
                    let copied = fs::read_link(from.join(&path))
                        .and_then(|target| symlink(target, to.join(&path)));
                    copied.map_err(host(&path))?;
                } else if found.is_file() && self.bytes + found.size() <= MAX_BYTES {
                    // If a file cannot be read, it is skipped.
                    if fs::copy(from.join(&path), to.join(&path)).is_ok() {
                        self.file(path, found.size());
                    }
                }
                if self.files.len() == MAX_FILES {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, path: PathBuf, size: u64) {
        self.bytes += size;
        if self.largest.as_ref().is_none_or(|(largest, _)| size > *largest) {
            self.largest = Some((size, path.clone()));
        }
        self.files.push(path);
    }
}

fn make_image(tree: &Path, image: &Path, bytes: u64, files: usize) -> Result<(), Failure> {
    // The image needs more space than the content of the files. Each file may waste a part of its last block, and metadata needs space.
    let size = bytes + files as u64 * 4096 * 2 + (64 << 20);
    let made = fs::File::create(image).and_then(|file| file.set_len(size));
    made.map_err(host(image))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.env("PATH", [path.as_os_str(), "/usr/sbin:/sbin".as_ref()].join(":".as_ref()));
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-d"]).arg(tree).arg(image);
    let output = mke2fs.output().map_err(|error| Failure::host("mke2fs, of e2fsprogs,", error))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::new(format!("mke2fs: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// Prints the first lines of the tree, in the style of `ls -R`.
fn list(source: &Source) -> Result<(), Failure> {
    let fs = source.volume.fs();
    let root = fs.inode(fs.root()).map_err(|error| Failure::at(source.name(b"/"), &error))?;
    let mut out = stdout();
    let mut pending = vec![(b"/".to_vec(), root)];
    let mut lines = 0;
    while let Some((path, dir)) = pending.pop() {
        for entry in source.entries(&dir, &path)? {
            let dots = matches!(&*entry.name, b"." | b"..");
            if dots || lines == SHOWN {
                continue;
            }
            let path = join(&path, &entry.name);
            let inode = source.inode(entry.inode, &path)?;
            lines += 1;
            write!(out, "{:>10}  ", inode.size())?;
            out.write_all(&out.shown(&path))?;
            writeln!(out)?;
            if inode.file_type() == FileType::Directory {
                pending.push((path, inode));
            }
        }
    }
    writeln!(out, "       ...")?;
    Ok(out.flush()?)
}

/// Reads each file through the direct-I/O core and compares its checksum with the original's.
fn compare(source: &Source, copy: &Path, taken: &Taken) -> Result<(), Failure> {
    let mut queue = source.queue()?;
    let progress = progress("comparing", taken.files.len() as u64);
    for path in &taken.files {
        let path_bytes = format!("/{}", path.display()).into_bytes();
        let found = source.volume.fs().resolve(&path_bytes, Follow::NotLast);
        let inode = found.map_err(|error| Failure::at(source.name(&path_bytes), &error))?;
        let ours = checksum(source, inode, &path_bytes, &mut queue)?;
        let theirs = crc32c::crc32c(&fs::read(copy.join(path)).map_err(host(path))?);
        if ours != theirs {
            return Err(Failure::corrupt(
                source.name(&path_bytes),
                &format!("{ours:08x} instead of {theirs:08x}"),
            ));
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    say(&format!("{} files compared, all checksums are equal", taken.files.len()))
}

fn checksum(source: &Source, inode: Inode, path: &[u8], queue: &mut Queue) -> Result<u32, Failure> {
    let file = source.file(inode, path)?;
    let mut content = vec![0; file.size() as usize];
    let count = transfer::read(&file, queue, &mut content, FilePos(0));
    let count = count.map_err(|error| Failure::at(source.name(path), &error))?;
    Ok(crc32c::crc32c(&content[..count]))
}

/// Runs the bench on devices in memory. Creates and removes these devices.
fn measure(out: &Path, report: &mut Report, subcommand: RunCommand) -> Result<(), Failure> {
    let zram = rustix::process::geteuid().is_root()
        && Path::new("/sys/class/zram-control/hot_add").exists();
    let fixture = if zram { "zram" } else { "shm" };
    let (json, svg) = (out.join("bench.json"), out.join("bench.svg"));
    let (json, svg) = (json.display().to_string(), svg.display().to_string());
    // XFS is preferred. ext4 caches its metadata in the page cache of the device. This slows down the `host:` targets.
    let xfs = zram
        && std::env::var_os("PATH").is_some_and(|path| {
            std::env::split_paths(&path).any(|dir| dir.join("mkfs.xfs").exists())
        });
    let fs = if xfs { "xfs" } else { "ext4" };
    let args =
        ["--fixture", fixture, "--fs", fs, "--simple", "both", "--json", &json, "--plot", &svg];
    say(&format!("ironmap bench {}", args.join(" ")))?;
    subcommand(&[&["bench"], &args[..]].concat(), report)?;
    if !xfs {
        return Ok(());
    }
    say(
        "on a disk without partitions, the page cache of the disk contains metadata of a mounted ext4, so reads are slower: --fs ext4 measures this",
    )
}

fn heading(text: &str) -> Result<(), Failure> {
    say(&format!("\n== {text}"))
}

fn say(line: &str) -> Result<(), Failure> {
    Ok(print_line(line)?)
}

fn host(place: &Path) -> impl Fn(io::Error) -> Failure {
    let place = place.display().to_string();
    move |error| Failure::host(&place, error)
}
