//! Volumes that are open in this process. All jobs that name a volume share one open volume, because a volume is opened exclusively.

use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ironmap::error::Context;
use ironmap::{Engine, Error, ErrorKind, Volume, VolumeOptions};

use crate::tell::tell;

static VOLUMES: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

/// A volume that a job names in its options. The entry stays in the list after the volume is closed.
struct Shared {
    name: String,
    /// Whether a job of this process writes, or will write.
    writes: bool,
    open: Option<Open>,
}

struct Open {
    volume: Volume,
    /// The requested engine.
    engine: Engine,
    writable: bool,
    users: usize,
    /// The process that opened the volume. A child process that fio forks has a copy of this value, but cannot use the volume.
    process: u32,
}

/// A job's reference to an open volume. The last job that returns its reference closes the volume.
pub(crate) struct Lent {
    /// The volume, or `None` after it was returned.
    volume: Option<Volume>,
    name: String,
}

/// Locks the list of volumes. Opens and closes happen under the lock too, so that a job cannot find a volume while another job closes it.
fn volumes() -> MutexGuard<'static, Vec<Shared>> {
    VOLUMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records whether a job will write to its volume. fio prepares all jobs before the first job begins. So the first job opens the volume for
/// writing if any job writes.
pub(crate) fn expect(name: &str, writes: bool) {
    entry(&mut volumes(), name).writes |= writes;
}

fn entry<'a>(volumes: &'a mut Vec<Shared>, name: &str) -> &'a mut Shared {
    let at = volumes.iter().position(|shared| shared.name == name).unwrap_or_else(|| {
        volumes.push(Shared { name: name.to_owned(), writes: false, open: None });
        volumes.len() - 1
    });
    &mut volumes[at]
}

/// Opens a volume. If other jobs have the volume open, shares it with them.
pub(crate) fn open(name: &str, engine: Engine, write: bool) -> Result<Lent, Error> {
    let mut volumes = volumes();
    let shared = entry(&mut volumes, name);
    let name = name.to_owned();
    if let Some(open) = &mut shared.open {
        check(open, &name, engine, write)?;
        open.users += 1;
        return Ok(Lent { volume: Some(open.volume.clone()), name });
    }
    let writable = write || shared.writes;
    let how = VolumeOptions::new().engine(engine).write(writable);
    let volume = how.open(name.as_str()).map_err(explain)?;
    volume.notices().iter().for_each(|notice| tell(&format!("{name}: {notice}")));
    let process = process::id();
    shared.open = Some(Open { volume: volume.clone(), engine, writable, users: 1, process });
    Ok(Lent { volume: Some(volume), name })
}

/// Adds an open volume that was not opened by name, for tests. Jobs then find it under `name`, as if another job had opened it.
#[cfg(test)]
pub(crate) fn give(name: &str, volume: Volume) {
    let (engine, writable, users) = (Engine::Auto, volume.fs().is_writable(), 0);
    let open = Open { volume, engine, writable, users, process: process::id() };
    entry(&mut volumes(), name).open = Some(open);
}

fn check(open: &Open, name: &str, engine: Engine, write: bool) -> Result<(), Error> {
    if open.process != process::id() {
        return Err(explain(Error::new(
            ErrorKind::Busy,
            format!("{name}: another job has opened the volume"),
        )));
    }
    if write && !open.writable {
        return Err(Error::new(
            ErrorKind::ReadOnly,
            format!("{name}: a job that only reads has opened the volume"),
        ));
    }
    if open.engine != engine {
        let other = open.engine;
        return Err(Error::invalid(format!(
            "{name}: engine={engine} is given, but another job uses engine={other}"
        )));
    }
    Ok(())
}

/// Adds a hint to the error: by default fio runs jobs as processes, and only one process can open a volume at a time.
fn explain(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Busy => {
            Error::new(ErrorKind::Busy, format!("{error} (jobs that share a volume need --thread)"))
        }
        _ => error,
    }
}

impl Lent {
    /// The volume.
    pub(crate) fn volume(&self) -> &Volume {
        self.volume.as_ref().expect("the volume is present until `give_back`")
    }

    /// Ends this use of the volume. The last user closes the volume.
    ///
    /// # Errors
    /// The errors of the close, for the last user.
    pub(crate) fn close(mut self) -> Result<(), Error> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<(), Error> {
        let mut volumes = volumes();
        if self.volume.take().is_none() {
            return Ok(());
        }
        let shared = entry(&mut volumes, &self.name);
        let Some(open) = &mut shared.open else { return Ok(()) };
        open.users -= 1;
        if open.users > 0 {
            return Ok(());
        }
        let closed = open.volume.close();
        shared.open = None;
        closed.context(|| format!("close {}", self.name))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Err(error) = self.give_back() {
            tell(&error.to_string());
        }
    }
}
