//! The main oracle: system calls on a file system that the kernel has mounted. The oracle also reads the source directories of copies.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, StatxTimestamp};

use super::command::run;
use super::reads::{Depth, plan};
use super::view::{Piece, Record, Time, View, join, joined};

/// The maximum number of files in one call of filefrag.
const FILES_A_CALL: usize = 500;

/// The kernel's view of a file tree, without the maps of files. The seed determines which ranges of the files are read.
pub(crate) fn view(root: &Path, depth: Depth, seed: u64) -> View {
    let mut view = View::new();
    visit(root, b"", &mut view, Some(depth), seed);
    view
}

/// The view of a file tree, with only the results of `stat`. It is used if file contents and links cannot be read.
pub(crate) fn view_of_stats(root: &Path) -> View {
    let mut view = View::new();
    visit(root, b"", &mut view, None, 0);
    view
}

/// The kernel's view of a file tree, with the maps of files. The file system must be mounted read-only, so that the maps cannot change.
pub(crate) fn view_with_maps(root: &Path, depth: Depth, seed: u64) -> View {
    let mut view = view(root, depth, seed);
    let mut regular: Vec<_> =
        view.iter_mut().filter(|(_, record)| record.is(FileType::RegularFile)).collect();
    for files in regular.chunks_mut(FILES_A_CALL) {
        let paths: Vec<_> =
            files.iter().map(|(path, _)| root.join(OsStr::from_bytes(path))).collect();
        for ((_, record), map) in files.iter_mut().zip(maps(&paths)) {
            record.map = Some(map);
        }
    }
    view
}

/// Adds the output of `lsattr` for directories and regular files: flags, generation and project.
pub(crate) fn add_flags(root: &Path, view: &mut View) {
    // Names with a newline are skipped: lsattr does not escape newlines, so its output cannot be parsed.
    let shown = |(path, record): &(&Vec<u8>, &mut Record)| {
        let has_flags = record.is(FileType::RegularFile) || record.is(FileType::Directory);
        has_flags && !path.contains(&b'\n')
    };
    let mut files: Vec<_> = view.iter_mut().filter(shown).collect();
    for files in files.chunks_mut(FILES_A_CALL) {
        let mut args: Vec<PathBuf> = vec!["-dpv".into(), "--".into()];
        args.extend(files.iter().map(|(path, _)| root.join(OsStr::from_bytes(path))));
        let output = run("lsattr", &args);
        let lines: Vec<_> = output.trim_ascii_end().split(|byte| *byte == b'\n').collect();
        assert_eq!(lines.len(), files.len(), "lsattr's answers");
        for ((_, record), line) in files.iter_mut().zip(lines) {
            let line = String::from_utf8_lossy(line);
            let mut fields = line.split_whitespace();
            let mut next = || fields.next().unwrap_or_else(|| panic!("lsattr says {line}"));
            record.project = next().parse().ok();
            record.generation = next().parse().ok();
            record.flags = Some(flags_of_letters(next()));
        }
    }
}

/// Converts the letters of `lsattr` to flags (`FS_*_FL`). Only flags that XFS supports are included.
fn flags_of_letters(letters: &str) -> u32 {
    let flag = |letter| match letter {
        '-' => 0,
        'S' => 0x8,
        'i' => 0x10,
        'a' => 0x20,
        'd' => 0x40,
        'A' => 0x80,
        'x' => 0x200_0000,
        'P' => 0x2000_0000,
        _ => panic!("lsattr says {letters}"),
    };
    letters.chars().map(flag).fold(0, |all, flag| all | flag)
}

fn visit(root: &Path, path: &[u8], view: &mut View, depth: Option<Depth>, seed: u64) {
    let absolute = root.join(OsStr::from_bytes(path));
    let stat = rustix::fs::statx(
        CWD,
        &absolute,
        AtFlags::SYMLINK_NOFOLLOW,
        StatxFlags::BASIC_STATS | StatxFlags::BTIME,
    )
    .unwrap_or_else(|error| panic!("{}: {error}", absolute.display()));
    let file_type = FileType::from_raw_mode(stat.stx_mode.into());
    let mut record = record(&stat, file_type);
    record.xattrs = Some(xattrs(&absolute));
    match (file_type, depth) {
        (FileType::Symlink, Some(_)) => {
            let target = std::fs::read_link(&absolute).expect("a link's target");
            record.target = Some(target.as_os_str().as_bytes().to_vec());
        }
        (FileType::RegularFile, Some(depth)) => {
            let file = File::open(&absolute)
                .unwrap_or_else(|error| panic!("{}: {error}", absolute.display()));
            record.reads = plan(&file, stat.stx_size, depth, seed);
        }
        _ => {}
    }
    view.insert(path.to_vec(), record);
    if file_type == FileType::Directory {
        for entry in std::fs::read_dir(&absolute).expect("a directory") {
            let name = entry.expect("an entry").file_name();
            visit(root, &join(path, name.as_bytes()), view, depth, seed);
        }
    }
}

fn record(stat: &Statx, file_type: FileType) -> Record {
    let time = |time: StatxTimestamp| -> Time { (time.tv_sec, time.tv_nsec) };
    let is_device = matches!(file_type, FileType::CharacterDevice | FileType::BlockDevice);
    let has_btime = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    Record {
        inode: Some(stat.stx_ino),
        mode: Some(stat.stx_mode.into()),
        links: Some(stat.stx_nlink),
        owner: Some((stat.stx_uid, stat.stx_gid)),
        size: Some(stat.stx_size),
        blocks: Some(stat.stx_blocks),
        device: is_device.then_some((stat.stx_rdev_major, stat.stx_rdev_minor)),
        accessed: Some(time(stat.stx_atime)),
        modified: Some(time(stat.stx_mtime)),
        changed: Some(time(stat.stx_ctime)),
        created: has_btime.then(|| time(stat.stx_btime)),
        ..Record::default()
    }
}

pub(crate) fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 1 << 16];
    let length = rustix::fs::llistxattr(path, &mut names[..]).expect("names of attributes");
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 1 << 16];
        let length =
            rustix::fs::lgetxattr(path, name, &mut value[..]).expect("an attribute's value");
        value.truncate(length);
        // The view contains thousands of attribute values, so unused capacity would waste much memory.
        value.shrink_to_fit();
        value
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

/// The map of each file in bytes, as `filefrag -v` prints it.
pub(crate) fn maps(paths: &[PathBuf]) -> Vec<Vec<Piece>> {
    let mut args: Vec<PathBuf> = vec!["-v".into(), "-b1".into(), "--".into()];
    args.extend_from_slice(paths);
    let output = run("filefrag", &args);
    let mut maps = Vec::new();
    let mut pieces = Vec::new();
    for line in output.split(|byte| *byte == b'\n').map(String::from_utf8_lossy) {
        if let Some(piece) = filefrag_line(&line) {
            pieces.extend(piece);
        } else if line.ends_with(" extents found") || line.ends_with(" extent found") {
            maps.push(joined(std::mem::take(&mut pieces)));
        }
    }
    assert_eq!(maps.len(), paths.len(), "filefrag's answers");
    maps
}

/// Parses `   0:        0..    4095:    8192..   12287:   4096:   expected: last,eof`. Returns the extent; `Some(None)` for an extent
/// without a separate physical address; or `None` for any other line.
fn filefrag_line(line: &str) -> Option<Option<Piece>> {
    let fields: Vec<_> = line.split(':').map(str::trim).collect();
    let [index, logical, physical, len, ..] = fields[..] else { return None };
    index.parse::<u64>().ok()?;
    let start = |range: &str| range.split("..").next()?.trim().parse().ok();
    let flags = fields.last()?;
    let piece = Piece {
        pos: start(logical)?,
        len: len.parse().ok()?,
        addr: start(physical)?,
        unwritten: flags.contains("unwritten"),
    };
    Some((!flags.contains("inline")).then_some(piece))
}
