//! The store of a job's files: a volume that the job shares with other jobs, or the host.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ironmap::fs::{Fallocate, Follow};
use ironmap::units::FilePos;
use ironmap::{Engine, Error, File, FileOptions, Host, HostOptions, Queue, QueueOptions, Result};

use crate::options::{Options, Source};
use crate::shared::{self, Lent};
use crate::tell::tell;

/// The store of a job's files.
pub(crate) enum Store {
    Volume(Box<Lent>),
    Host(Host),
}

impl Store {
    pub(crate) fn open(options: &Options) -> Result<Self> {
        Ok(match &options.source {
            Source::Volume(name) => {
                Self::Volume(Box::new(shared::open(name, options.engine, options.writes)?))
            }
            Source::Host => Self::Host(Host::new(&HostOptions::new().engine(options.engine))?),
        })
    }

    /// The engine in use. For files of the host, this is the requested engine.
    pub(crate) fn engine(&self, options: &Options) -> Engine {
        match self {
            Self::Volume(lent) => lent.volume().engine(),
            Self::Host(_) => options.engine,
        }
    }

    pub(crate) fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        match self {
            Self::Volume(lent) => lent.volume().queue(options),
            Self::Host(host) => host.queue(options),
        }
    }

    /// Opens a file. If the kernel serves the reads of a host file, prints a note, because the figures of fio then measure the kernel
    /// instead of ironmap.
    pub(crate) fn open_file(&self, path: &[u8], options: FileOptions) -> Result<File> {
        match self {
            Self::Volume(lent) => {
                let volume = lent.volume();
                volume.open_inode(
                    volume.fs().resolve(path, Follow::All)?,
                    options.write(volume.fs().is_writable()),
                )
            }
            Self::Host(host) => {
                let path = Path::new(OsStr::from_bytes(path));
                let file = host.open_with(path, options)?;
                if let Some(refusal) = file.host().and_then(|report| report.refusal) {
                    tell(&format!(
                        "{}: the kernel serves the reads of this file: {refusal}",
                        path.display()
                    ));
                }
                Ok(file)
            }
        }
    }

    pub(crate) fn punch(&self, file: &File, pos: FilePos, len: usize) -> Result<usize> {
        let Self::Volume(lent) = self else {
            return Err(Error::invalid("host files can be read but not written"));
        };
        let fs = lent.volume().fs();
        fs.writable()?.fallocate(file.inode(), Fallocate::Punch, pos, len as u64).map(|()| len)
    }

    pub(crate) fn close(self) -> Result<()> {
        match self {
            Self::Volume(lent) => lent.close(),
            Self::Host(_) => Ok(()),
        }
    }
}
