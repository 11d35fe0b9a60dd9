//! The changes of files, and the states that a crash may leave after them.
//!
//! A file is checked in cells (small ranges). Each cell contains the number of its file, its position, and the number of the write that
//! stored it. With these numbers the check finds data at a wrong position. An acknowledged write with O_DSYNC must exist. A change that was
//! acknowledged before a successful sync must exist too. Other changes may exist completely, in part or not at all.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::crash::seen::{Body, Tree};

/// The size of a cell in bytes. It is less than a sector, so that two writes can share a sector.
pub(crate) const CELL: u64 = 16;

/// The byte that fills free space. It stands for old data of other users. No file may show it.
pub(crate) const STALE: u8 = 0xDB;

/// The number of a file, in the order of creation. The name of a file is never reused.
pub(crate) type FileId = usize;

/// A change of a file: the file and the index of the change in its history.
#[derive(Clone, Copy)]
pub(crate) struct ChangeId(FileId, usize);

#[derive(Clone, Debug)]
pub(crate) enum What {
    Create,
    Unlink,
    /// A write with this number (of the write) and this range. After the write, the file extends at least to the end of the range.
    Write(u32, Range<u64>),
    Truncate(u64),
    /// The range reads as zeros. The file then has at least the size `grown`.
    Space {
        zeroed: Range<u64>,
        grown: u64,
    },
}

#[derive(Debug)]
struct Change {
    what: What,
    /// Whether the acknowledgement of the change also means that the change is durable.
    synced: bool,
    when: When,
}

/// The number of the event at which an operation began, and the number of the event at which it returned. A failed operation has no second
/// event.
#[derive(Clone, Copy, Debug)]
struct When {
    begin: u64,
    end: Option<u64>,
}

impl When {
    fn had_begun(self, now: u64) -> bool {
        self.begin <= now
    }

    fn had_ended(self, now: u64) -> bool {
        self.end.is_some_and(|end| end <= now)
    }
}

#[derive(Default)]
pub(crate) struct History {
    /// The number of events so far. An event is the begin or the return of an operation; the first event has number 1.
    events: u64,
    writes: u32,
    files: Vec<Vec<Change>>,
    /// The syncs, each of one file or of all files (`None`).
    syncs: Vec<(Option<FileId>, When)>,
    /// The writes that were stored at a lower position than the position for which their data were made. The key is the number of the
    /// write. The value is the distance between the two positions.
    moved: HashMap<u32, u64>,
}

/// The bytes that a write stores in a cell (a small range of the file).
fn cell(file: FileId, number: u32, pos: u64) -> [u8; CELL as usize] {
    let words = [0xCE11_0000 + file as u32, (pos / CELL) as u32, number];
    let check = words.iter().fold(0x1A2B_3C4D, |sum: u32, word| sum.rotate_left(9) ^ word);
    let mut bytes = [0; CELL as usize];
    for (place, word) in bytes.chunks_mut(4).zip(words.into_iter().chain([check])) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn word(cell: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(cell[4 * at..4 * at + 4].try_into().expect("four bytes"))
}

/// Fills a buffer with the data of a write.
pub(crate) fn fill(buf: &mut [u8], file: FileId, number: u32, pos: u64) {
    for (place, pos) in buf.chunks_mut(CELL as usize).zip((pos..).step_by(CELL as usize)) {
        place.copy_from_slice(&cell(file, number, pos));
    }
}

pub(crate) fn name(file: FileId) -> String {
    format!("file-{file}")
}

impl History {
    pub(crate) fn new_file(&mut self) -> FileId {
        self.files.push(Vec::new());
        self.files.len() - 1
    }

    /// The number of the next write.
    pub(crate) fn new_write(&mut self) -> u32 {
        self.writes += 1;
        self.writes
    }

    /// Records an event (the begin or the return of an operation), and returns the number of the event.
    pub(crate) fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// Records a change that began at an event (identified by its number). If several changes affect the same bytes, they must be recorded
    /// in order.
    pub(crate) fn begun(&mut self, file: FileId, what: What, synced: bool, begin: u64) -> ChangeId {
        self.files[file].push(Change { what, synced, when: When { begin, end: None } });
        ChangeId(file, self.files[file].len() - 1)
    }

    /// Records that the data of a write were made for another position. This happens to an append that follows a failed append.
    pub(crate) fn moved(&mut self, change: ChangeId, pos: u64) {
        if let What::Write(number, range) = &mut self.files[change.0][change.1].what {
            self.moved.insert(*number, range.start - pos);
            *range = pos..pos + (range.end - range.start);
        }
    }

    /// Records that a change was acknowledged.
    pub(crate) fn ended(&mut self, change: ChangeId, end: u64) {
        self.files[change.0][change.1].when.end = Some(end);
    }

    /// Records a sync that has returned.
    pub(crate) fn synced(&mut self, file: Option<FileId>, begin: u64, end: u64) {
        self.syncs.push((file, When { begin, end: Some(end) }));
    }

    /// Whether a change of a file must be durable if the power fails after event number `now`.
    fn is_certain(&self, file: FileId, change: &Change, now: u64) -> bool {
        let Some(end) = change.when.end.filter(|end| *end <= now) else { return false };
        let covers = |of: Option<FileId>| match change.what {
            // A sync of a file does not make its names durable.
            What::Unlink => of.is_none(),
            _ => of.is_none_or(|of| of == file),
        };
        change.synced
            || self
                .syncs
                .iter()
                .any(|(of, when)| when.begin > end && when.had_ended(now) && covers(*of))
    }

    /// Checks whether the state of a volume is allowed if the power failed after event number `now`.
    ///
    /// # Errors
    /// The difference from the allowed states.
    pub(crate) fn check(&self, tree: &Tree, now: u64) -> Result<(), String> {
        let known: BTreeSet<_> = (0..self.files.len()).map(name).collect();
        if let Some(path) = tree.keys().find(|path| !known.contains(*path)) {
            return Err(format!("{path} was never made"));
        }
        for file in 0..self.files.len() {
            let path = name(file);
            let checked = self.check_file(file, tree.get(&path).map(|seen| &seen.body), now);
            checked
                .map_err(|fault| format!("{path}: {fault}; it had {}", self.story(file, now)))?;
        }
        Ok(())
    }

    /// Lists the changes of a file, for a message.
    fn story(&self, file: FileId, now: u64) -> String {
        let changes = self.files[file].iter().filter(|change| change.when.had_begun(now));
        let lines = changes.map(|change| {
            let certain = if self.is_certain(file, change, now) { ", durable" } else { "" };
            format!("\n  {:?}, {:?}{certain}", change.when, change.what)
        });
        lines.collect()
    }

    fn check_file(&self, file: FileId, seen: Option<&Body>, now: u64) -> Result<(), String> {
        let begun = self.files[file].iter().filter(|change| change.when.had_begun(now));
        let changes: Vec<_> =
            begun.map(|change| (&change.what, self.is_certain(file, change, now))).collect();
        let content = match seen {
            None if presence(&changes).contains(&false) => return Ok(()),
            None => return Err("is not there".to_owned()),
            Some(_) if !presence(&changes).contains(&true) => return Err("is there".to_owned()),
            Some(Body::File(content)) => content,
            Some(other) => return Err(format!("is {}", other.kind())),
        };
        let sizes = sizes(&changes);
        if !sizes.contains(&(content.len() as u64)) {
            return Err(format!("has {} bytes, not one of {sizes:?}", content.len()));
        }
        for range in parts(&changes, content.len() as u64) {
            let allowed = numbers(&changes, &range);
            let bytes = &content[range.start as usize..range.end as usize];
            for (pos, found) in
                range.clone().step_by(CELL as usize).zip(bytes.chunks(CELL as usize))
            {
                check_cell(file, pos, found, &allowed, &self.moved)?;
            }
        }
        Ok(())
    }
}

type Changes<'a> = [(&'a What, bool)];

fn check_cell(
    file: FileId,
    pos: u64,
    found: &[u8],
    allowed: &[u32],
    moved: &HashMap<u32, u64>,
) -> Result<(), String> {
    let zeros = found.iter().all(|byte| *byte == 0);
    let number = if zeros { 0 } else { word(found, 2) };
    let what = if zeros {
        "zeros".to_owned()
    } else if found == cell(file, number, pos + moved.get(&number).unwrap_or(&0)) {
        format!("write {number}")
    } else if found.iter().all(|byte| *byte == STALE) {
        return Err(format!("byte {pos}: data of free space"));
    } else {
        return Err(format!("byte {pos}: data of others: {found:02x?}"));
    };
    if allowed.contains(&number) {
        return Ok(());
    }
    Err(format!("byte {pos}: {what}, not one of {allowed:?}"))
}

/// The possible states of a name after a power cut. `true`: the name may exist. `false`: the name may be missing.
fn presence(changes: &Changes<'_>) -> BTreeSet<bool> {
    let (mut now, mut options) = (false, BTreeSet::from([false]));
    for (what, certain) in changes {
        now = match what {
            What::Create => true,
            What::Unlink => false,
            _ => now,
        };
        // A file without a name may have a durable change. The removal of its name may still be lost.
        if *certain && (now || matches!(what, What::Unlink)) {
            options.clear();
        }
        options.insert(now);
    }
    options
}

/// The possible sizes of a file. Writes in flight can extend the file in any order. A truncation begins after the writes in flight have
/// completed.
fn sizes(changes: &Changes<'_>) -> BTreeSet<u64> {
    // Two sets: the possible sizes before the last truncation, and those after it.
    let (mut older, mut newer) = (BTreeSet::new(), BTreeSet::from([0]));
    for (what, certain) in changes {
        let grown: BTreeSet<u64> = match what {
            What::Truncate(size) => {
                older.append(&mut newer);
                BTreeSet::from([*size])
            }
            What::Write(_, Range { end, .. }) | What::Space { grown: end, .. } => {
                newer.iter().map(|size| *size.max(end)).collect()
            }
            _ => newer.clone(),
        };
        if *certain {
            older.clear();
            newer.clear();
        }
        newer.extend(grown);
    }
    older.append(&mut newer);
    older
}

/// The range of the file whose content a change replaces.
fn touched(what: &What) -> Range<u64> {
    match what {
        What::Write(_, range) | What::Space { zeroed: range, .. } => range.clone(),
        What::Truncate(size) => *size..u64::MAX,
        _ => 0..0,
    }
}

/// Splits a file into ranges, at the borders of all changes. So a change affects each range as a whole, or not at all.
fn parts(changes: &Changes<'_>, size: u64) -> Vec<Range<u64>> {
    let edges = changes.iter().flat_map(|(what, _)| [touched(what).start, touched(what).end]);
    let edges: BTreeSet<_> = edges.filter(|edge| *edge < size).chain([0, size]).collect();
    let edges: Vec<_> = edges.into_iter().collect();
    edges.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// The numbers of the writes whose data a range of the file may show; 0 stands for zeros.
fn numbers(changes: &Changes<'_>, part: &Range<u64>) -> Vec<u32> {
    let mut numbers = vec![0];
    for (what, certain) in changes {
        let range = touched(what);
        if range.start <= part.start && part.end <= range.end {
            if *certain {
                numbers.clear();
            }
            numbers.push(if let What::Write(number, _) = what { *number } else { 0 });
        }
    }
    numbers
}
