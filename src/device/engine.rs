//! Which device stands over an open file: chosen by name, or by what the file can do.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::null::NullTransfer;
use super::nvme;
use super::psync::PsyncFiles;
use super::uring::UringQueue;
use super::{
    AnyQueue, BlockFile, Dax, Device, Immediate, Null, Protected, Psync, QueueOptions, Uring,
    UringOptions,
};
use crate::error::{Error, Result};

/// How requests for file data reach the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// io_uring where the device and the kernel have what it needs, else psync.
    #[default]
    Auto,
    /// One `pread` a request.
    Psync,
    /// io_uring, batched. Falls back to psync, with a notice, where the device does not know NOWAIT.
    IoUring,
    /// io_uring with polled completions. Falls back to unpolled ones, with a notice, where the device has no poll queues.
    IoUringPoll,
    /// Loads from a mapping of an image.
    Dax,
    /// File data completes at once without being read: measures the engine itself.
    Null,
    /// Requests to an NBD server: of its exports, and of nothing else.
    Nbd,
    /// Requests to an image of a virtual machine, and to nothing else.
    Image,
}

impl Engine {
    const NAMES: [(Self, &'static str); 8] = [
        (Self::Auto, "auto"),
        (Self::Psync, "psync"),
        (Self::IoUring, "io_uring"),
        (Self::IoUringPoll, "io_uring_poll"),
        (Self::Dax, "dax"),
        (Self::Null, "null"),
        (Self::Nbd, "nbd"),
        (Self::Image, "image"),
    ];

    /// Whether requests complete within the call that submits them, so that there is no depth to speak of.
    #[must_use]
    pub fn is_immediate(self) -> bool {
        matches!(self, Self::Psync | Self::Dax | Self::Null | Self::Image)
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            Self::NAMES.iter().find(|(engine, _)| engine == self).map_or("", |(_, name)| name);
        f.pad(name)
    }
}

impl FromStr for Engine {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text).map(|(engine, _)| *engine);
        found.ok_or_else(|| {
            let names: Vec<_> = Self::NAMES.iter().map(|(_, name)| *name).collect();
            Error::invalid(format!("{text} is not an engine; the engines are {}", names.join(", ")))
        })
    }
}

/// A device over an open file.
pub struct OpenedEngine {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The engine that it is; never [`Engine::Auto`].
    pub engine: Engine,
    /// The requests that were not met as asked, a line each.
    pub notices: Vec<String>,
}

fn not_nbd() -> Error {
    Error::invalid("the engine nbd is for exports of NBD servers, and they need no other")
}

fn not_image() -> Error {
    Error::invalid("the engine image is for images of virtual machines, and they need no other")
}

/// A queue that serves no device of its own, but the files that are [attached](super::DeviceQueue::attach) to it.
///
/// # Errors
/// `Io` where the kernel has no io_uring; `InvalidInput` for an engine that is bound to one device.
pub(crate) fn open_queue(engine: Engine, options: &QueueOptions) -> Result<AnyQueue> {
    let psync = || AnyQueue::Psync(Immediate::new(PsyncFiles::new(None), options.slots()));
    let uring = |poll| {
        let how = UringOptions { poll, ..UringOptions::default() };
        let narrow = || UringQueue::new(how, options).map(AnyQueue::Uring);
        if nvme::are_present() {
            // A device path may lead to one. Before Linux 5.19 there are no wide entries.
            UringQueue::new(how, options).map(AnyQueue::Nvme).or_else(|_| narrow())
        } else {
            narrow()
        }
    };
    match engine {
        Engine::Auto => Ok(uring(false).unwrap_or_else(|_| psync())),
        Engine::Psync => Ok(psync()),
        Engine::IoUring => uring(false),
        Engine::IoUringPoll => uring(true),
        Engine::Null => Ok(AnyQueue::Null(Immediate::new(NullTransfer, options.slots()))),
        Engine::Dax => Err(Error::invalid("dax needs an image of its own")),
        Engine::Nbd => Err(not_nbd()),
        Engine::Image => Err(not_image()),
    }
}

/// The device of an engine over an open file.
///
/// # Errors
/// `Io` where the kernel has no io_uring or cannot map the file.
pub fn open_engine(file: impl Into<Arc<BlockFile>>, engine: Engine) -> Result<OpenedEngine> {
    open_over(&file.into(), engine)
}

fn open_over(file: &Arc<BlockFile>, engine: Engine) -> Result<OpenedEngine> {
    let mut notices: Vec<String> = file.notice().map(str::to_owned).into_iter().collect();
    let limits = *file.limits();
    let psync = || Arc::new(Psync::new(Arc::clone(file))) as Arc<dyn Device>;
    let uring = |poll| {
        let options = UringOptions { poll, ..UringOptions::default() };
        if let Some(device) = Protected::new(file, options)? {
            return Ok(Arc::new(device) as Arc<dyn Device>);
        }
        let device = Arc::new(Uring::new(Arc::clone(file), options)) as Arc<dyn Device>;
        // A kernel may lack io_uring or forbid it: better known now than at the first queue.
        device.queue(&QueueOptions::new().depth(1)).map(|_| device)
    };
    let (device, engine) = match engine {
        Engine::Null => (Arc::new(Null::over(psync())) as _, Engine::Null),
        Engine::Dax => {
            let dax = Dax::new(file)?;
            notices.extend(dax.notice().map(str::to_owned));
            (Arc::new(dax) as _, Engine::Dax)
        }
        Engine::Auto if limits.nowait => match uring(false) {
            Ok(device) => (device, Engine::IoUring),
            Err(_) => (psync(), Engine::Psync),
        },
        Engine::Auto | Engine::Psync => (psync(), Engine::Psync),
        Engine::IoUring | Engine::IoUringPoll if !limits.nowait => {
            notices.push(
                "the device does not know NOWAIT, io_uring would punt every request: psync is used"
                    .into(),
            );
            (psync(), Engine::Psync)
        }
        Engine::IoUringPoll if !limits.poll => {
            notices.push("the device has no poll queues: completions are not polled".into());
            (uring(false)?, Engine::IoUring)
        }
        Engine::IoUring => (uring(false)?, Engine::IoUring),
        Engine::IoUringPoll => (uring(true)?, Engine::IoUringPoll),
        Engine::Nbd => return Err(not_nbd()),
        Engine::Image => return Err(not_image()),
    };
    Ok(OpenedEngine { device, engine, notices })
}
