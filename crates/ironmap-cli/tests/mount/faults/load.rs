//! A load of changes that records which results are allowed after a fault.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::rng::Rng;
use crate::support::pattern;

/// The allowed content of a file: bytes that a seed determines, with a minimum and a maximum length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    seed: u64,
    least: usize,
    most: usize,
}

/// Replaces, extends and removes files of its own directory, and syncs each change.
pub(super) struct Load {
    dir: PathBuf,
    rng: Rng,
    /// All allowed states of each name. They are the last synced state, and the states after later changes without a sync.
    allowed: BTreeMap<String, Vec<Option<Content>>>,
    next: u64,
}

impl Load {
    /// A load in the directory that has this number as its name. The directory must exist.
    pub(super) fn new(mounted: &Path, number: u64, seed: u64) -> Self {
        let dir = mounted.join(number.to_string());
        Self { dir, rng: Rng::new(seed << 8 | number), allowed: BTreeMap::new(), next: 0 }
    }

    /// Runs up to `steps` steps and counts them, until a step fails. A full volume is not a failure.
    pub(super) fn run(&mut self, steps: u64, made: &AtomicU64) -> io::Result<()> {
        for _ in 0..steps {
            match self.step() {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => {}
                Err(error) => return Err(error),
            }
            made.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn step(&mut self) -> io::Result<()> {
        let name = format!("file{}", self.rng.below(8));
        let now = self.allowed.entry(name.clone()).or_insert_with(|| vec![None]).clone();
        // A single allowed state is the current state of the file. After a failed step, several states may be allowed. The file is then
        // replaced.
        match (now.as_slice(), self.rng.below(8)) {
            ([Some(content)], 0..=2) => self.extend(&name, *content),
            ([Some(_)], 3) => self.remove(&name),
            _ => self.replace(&name),
        }
    }

    fn len(&mut self) -> usize {
        let most = if self.rng.below(4) == 0 { 300_000 } else { 9000 };
        self.rng.below(most) as usize
    }

    fn sync_dir(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    fn replace(&mut self, name: &str) -> io::Result<()> {
        self.next += 1;
        let (seed, len) = (self.rng.next(), self.len());
        let new = self.dir.join("new");
        let mut file = File::create(&new)?;
        file.write_all(&pattern(len, seed))?;
        file.sync_all()?;
        let content = Some(Content { seed, least: len, most: len });
        self.allowed.get_mut(name).unwrap().push(content);
        fs::rename(&new, self.dir.join(name))?;
        self.sync_dir()?;
        self.allowed.insert(name.to_owned(), vec![content]);
        Ok(())
    }

    fn extend(&mut self, name: &str, mut content: Content) -> io::Result<()> {
        let more = self.len();
        let begin = fs::metadata(self.dir.join(name))?.len() as usize;
        content.most = begin + more;
        self.allowed.insert(name.to_owned(), vec![Some(content)]);
        let mut file = File::options().append(true).open(self.dir.join(name))?;
        let written = file.write_all(&pattern(content.most, content.seed)[begin..]);
        file.sync_all()?;
        if written.is_ok() {
            content.least = content.most;
            self.allowed.insert(name.to_owned(), vec![Some(content)]);
        }
        written
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.allowed.get_mut(name).unwrap().push(None);
        fs::remove_file(self.dir.join(name))?;
        self.sync_dir()?;
        self.allowed.insert(name.to_owned(), vec![None]);
        Ok(())
    }

    /// Asserts that each name has one of its allowed states.
    pub(super) fn verify(&self, when: &str) {
        for (name, allowed) in &self.allowed {
            let found = match fs::read(self.dir.join(name)) {
                Ok(found) => Some(found),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => panic!("{when}: {name}: {error}"),
            };
            let fits = |content: &Option<Content>| match (content, &found) {
                (None, None) => true,
                (Some(content), Some(found)) => {
                    (content.least..=content.most).contains(&found.len())
                        && *found == pattern(found.len(), content.seed)
                }
                _ => false,
            };
            let len = found.as_ref().map(Vec::len);
            assert!(
                allowed.iter().any(fits),
                "{when}: {name} of {len:?} bytes, allowed {allowed:?}"
            );
        }
    }
}
