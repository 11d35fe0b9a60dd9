//! Internal snapshots. Each of them has its own L1 table.

use super::super::file::ImageFile;
use super::header::{Header, u32_at, u64_at};
use crate::error::{Error, ErrorKind, Place, Result};
use crate::units::FsBlock;

/// QEMU's limits: the number of snapshots, the length of their table in bytes, and the length of the extra data of a snapshot in bytes.
const MAX_SNAPSHOTS: u32 = 65536;
const MAX_TABLE: u64 = 64 << 20;
const MAX_EXTRA: u32 = 1024;
const HEAD: u64 = 40;

/// An internal snapshot.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) id: String,
    pub(super) name: String,
    /// The position and the number of entries of the L1 table.
    pub(super) l1_at: u64,
    pub(super) l1_entries: u64,
    /// The size of the disk in bytes. `None` if the size of the disk has not changed since the snapshot.
    pub(super) size: Option<u64>,
}

/// Reads the snapshot table.
pub(super) fn read(file: &ImageFile, header: &Header) -> Result<Vec<Snapshot>> {
    let place = |index: u32| Place::new("qcow2 snapshot table").block(FsBlock(index.into()));
    if header.snapshots > MAX_SNAPSHOTS {
        return Err(place(0).corrupt(format!("{} snapshots", header.snapshots)));
    }
    let (mut at, mut found) = (header.snapshots_at, Vec::new());
    for index in 0..header.snapshots {
        if at > file.len() || at - header.snapshots_at > MAX_TABLE {
            return Err(
                place(index).corrupt("the table is too long or ends past the end of the file")
            );
        }
        let mut head = [0; HEAD as usize];
        file.read_at(&mut head, at)?;
        let extra = u32_at(&head, 36);
        if extra > MAX_EXTRA {
            return Err(place(index).corrupt(format!("{extra} bytes of extra data")));
        }
        let texts = u32_at(&head, 12);
        let (id_len, name_len) = ((texts >> 16) as usize, (texts & 0xFFFF) as usize);
        let mut rest = vec![0; extra as usize + id_len + name_len];
        file.read_at(&mut rest, at + HEAD)?;
        let (extra, texts) = rest.split_at(extra as usize);
        let (id, name) = texts.split_at(id_len);
        found.push(Snapshot {
            id: String::from_utf8_lossy(id).into_owned(),
            name: String::from_utf8_lossy(name).into_owned(),
            l1_at: u64_at(&head, 0),
            l1_entries: u32_at(&head, 8).into(),
            size: (extra.len() >= 16).then(|| u64_at(extra, 8)),
        });
        at = (at + HEAD + rest.len() as u64).next_multiple_of(8);
    }
    Ok(found)
}

/// Returns the names of all snapshots. A snapshot without a name is represented by its number.
pub(in crate::device::image) fn names(file: &ImageFile, header: &Header) -> Result<Vec<String>> {
    let named = |Snapshot { id, name, .. }: Snapshot| if name.is_empty() { id } else { name };
    Ok(read(file, header)?.into_iter().map(named).collect())
}

/// Makes `header` describe the disk at the time of the snapshot with this name or, if no name matches, with this number.
pub(super) fn select(file: &ImageFile, header: &mut Header, name: &str) -> Result<()> {
    let all = read(file, header)?;
    let found = all.iter().find(|snapshot| snapshot.name == name);
    let Some(found) = found.or_else(|| all.iter().find(|snapshot| snapshot.id == name)) else {
        let names: Vec<&str> = all.iter().map(|snapshot| &*snapshot.name).take(20).collect();
        let what = match names[..] {
            [] => format!("the image has no snapshot {name}; it has no snapshots at all"),
            _ => format!("the image has no snapshot {name}; it has {}", names.join(", ")),
        };
        return Err(Error::new(ErrorKind::NotFound, what));
    };
    (header.l1_at, header.l1_entries) = (found.l1_at, found.l1_entries);
    header.size = found.size.unwrap_or(header.size);
    header.check_tables(file.len())
}
