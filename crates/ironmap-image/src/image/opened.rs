//! Reads, checks and resizes an existing image.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use ironmap::fs::Follow;
use ironmap::fs::check::Report as Checked;
use ironmap::{Location, NewSize, Resized, Volume};

use super::callbacks::Callbacks;
use crate::context::Context;
use crate::copy::{CopyOptions, Keep, copy};
use crate::failure::Failure;
use crate::opening::Opening;
use crate::progress::Bar;
use crate::report::Report;
use crate::resize::resize;
use crate::source::Source;
use crate::stop::Stop;
use crate::target::{Subject, Target};

/// An existing image. Each method opens the volume, and closes it before it returns.
pub struct OpenImage {
    volume: Location,
    bar: Option<Arc<dyn Bar>>,
    stop: Stop,
}

impl OpenImage {
    pub(super) fn new(volume: Location) -> Result<Self, Failure> {
        Ok(Self { volume, bar: None, stop: Stop::default() })
    }

    /// Shows the progress of [`extract`](Self::extract). Several threads call the methods of `bar`.
    #[must_use]
    pub fn progress(mut self, bar: Arc<dyn Bar>) -> Self {
        self.bar = Some(bar);
        self
    }

    /// Sets the request to end [`extract`](Self::extract) early. Another thread can make this request. The files that were already copied
    /// remain.
    #[must_use]
    pub fn stop(mut self, stop: &Stop) -> Self {
        self.stop = stop.clone();
        self
    }

    /// Opens the volume for reading, to use it with the library.
    ///
    /// # Errors
    /// The errors of the library: the location has no volume of a supported format, or another program is using it.
    pub fn volume(&self) -> Result<Volume, Failure> {
        Source::open(&self.volume, &self.context()).map(|source| source.volume.clone())
    }

    /// Copies a file of the volume to the host path `dest`. A directory is copied with everything below it. The attributes that the host
    /// can store are kept. Only root can set the owners of the copies and copy device nodes.
    ///
    /// # Errors
    /// The failure of the first file that cannot be copied. All other files are copied.
    pub fn extract(
        &self,
        path: impl Into<Vec<u8>>,
        dest: impl Into<PathBuf>,
    ) -> Result<(), Failure> {
        let source = Target { volume: self.volume.clone(), path: path.into() };
        let options = CopyOptions {
            sources: vec![Subject::Volume(source)],
            recurses: true,
            follow: Follow::NotLast,
            keep: Keep::ALL,
            no_clobber: false,
            no_target_directory: true,
            verbose: false,
        };
        let mut report = self.report();
        copy(&options, &Subject::Host(dest.into()), &mut report)?;
        report.result()
    }

    /// Makes the volume larger. An image file that is shorter than `bytes` is extended.
    ///
    /// # Errors
    /// The volume is not ext4, is damaged, or cannot have this size, or `bytes` is less than its size. The volume and the image file then
    /// keep their sizes.
    pub fn grow(&self, bytes: u64) -> Result<Resized, Failure> {
        let size = self.size()?;
        if bytes < size {
            let what =
                format!("the volume has {size} bytes: a size of {bytes} bytes would shrink it");
            return Err(Failure::usage(format!("{}: {what}", self.volume)));
        }
        self.resize(NewSize::Bytes(bytes))
    }

    /// Makes the volume larger or smaller. An image file is extended or truncated to the new size.
    ///
    /// # Errors
    /// The errors of [`grow`](Self::grow).
    pub fn resize(&self, size: NewSize) -> Result<Resized, Failure> {
        resize(&self.volume, size, &self.report())
    }

    /// Checks all metadata of the volume, and changes nothing.
    ///
    /// # Errors
    /// The volume cannot be opened or read. Faults of its metadata are findings, not errors.
    pub fn check(&self) -> Result<Checked, Failure> {
        let source = Rc::new(Source::open(&self.volume, &self.context())?);
        let checked = source.fs().check(&mut |_| ());
        checked.map_err(|error| Failure::at(&self.volume, &error))
    }

    /// Returns the size of the volume in bytes.
    fn size(&self) -> Result<u64, Failure> {
        let source = Source::open(&self.volume, &self.context())?;
        let sb = source.ext4()?.superblock();
        Ok(sb.blocks_count * sb.block_size.bytes() as u64)
    }

    fn context(&self) -> Arc<Context> {
        let callbacks = Callbacks { bar: self.bar.clone(), ..Callbacks::default() };
        Context::new(Box::new(callbacks), self.stop.clone(), Opening::default(), Ok(None))
    }

    fn report(&self) -> Report {
        Report::new(self.context())
    }
}

impl std::fmt::Debug for OpenImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenImage").field("volume", &self.volume).finish_non_exhaustive()
    }
}
