//! Chooses the device type for an open file: the engine that the user named, or the fastest engine that the file supports.

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
use crate::error::{Errno, Error, Result};

/// The method by which file data are transferred to and from the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// io_uring if the device and the kernel support it, otherwise psync.
    #[default]
    Auto,
    /// psync: one system call such as `pread` per request.
    Psync,
    /// io_uring, batched. Falls back to psync, with a notice, if the device does not support NOWAIT.
    IoUring,
    /// io_uring with polled completions. Falls back to completions without polling, with a notice, if the device has no poll queues.
    IoUringPoll,
    /// Loads from and stores to a mapping of an image.
    Dax,
    /// Requests for file data complete immediately, without a transfer. This engine measures only the time of the library itself.
    Null,
    /// Requests to an NBD server. Only exports use this engine.
    Nbd,
    /// Requests to an image of a virtual machine. Only these images use this engine.
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

    /// Whether each request completes within the call that submits it. The queue depth then has no effect.
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

/// The reason why a volume or a host does not use io_uring although the options permit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoIoUring {
    /// The kernel refuses to create a ring for the process, with this errno. EPERM has two usual causes: the seccomp filter of a container,
    /// and the setting `kernel.io_uring_disabled`. ENOSYS means that the kernel was built without io_uring, or that a filter returns this
    /// errno.
    Refused(Errno),
    /// The device does not support NOWAIT, so io_uring would pass each request to a worker thread of the kernel.
    NoNowait,
}

impl fmt::Display for NoIoUring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(errno) => {
                write!(f, "the kernel refuses io_uring: {errno}")?;
                match *errno {
                    Errno::EPERM => f.write_str(
                        " (by a seccomp filter, as in many containers, or by kernel.io_uring_disabled)",
                    ),
                    _ => Ok(()),
                }
            }
            Self::NoNowait => f.write_str("the device does not support NOWAIT"),
        }
    }
}

/// A device over an open file.
pub struct OpenedEngine {
    /// The device over the file.
    pub device: Arc<dyn Device>,
    /// The chosen engine; never [`Engine::Auto`].
    pub engine: Engine,
    /// The reason why the engine is not io_uring, if the requested engine would have permitted io_uring.
    pub no_io_uring: Option<NoIoUring>,
    /// One line for each requested setting that could not be applied.
    pub notices: Vec<String>,
}

fn not_nbd() -> Error {
    Error::invalid("the engine nbd is only for exports of NBD servers, which use it by default")
}

fn not_image() -> Error {
    Error::invalid(
        "the engine 'image' is only for images of virtual machines, which use it by default",
    )
}

/// Opens a queue without a device of its own. The queue serves only the files that are [attached](super::DeviceQueue::attach) to it.
///
/// # Errors
/// `Io` if the kernel has no io_uring; `InvalidInput` for an engine whose queues serve only one device.
pub(crate) fn open_queue(engine: Engine, options: &QueueOptions) -> Result<AnyQueue> {
    let psync = || AnyQueue::Psync(Immediate::new(PsyncFiles::new(None), options.slots()));
    let uring = |poll| {
        let how = UringOptions { poll, ..UringOptions::default() };
        let narrow = || UringQueue::new(how, options).map(AnyQueue::Uring);
        if nvme::are_present() {
            // The character device of an NVMe namespace may be attached later. NVMe commands need wide ring entries, which Linux supports
            // since 5.19.
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
        Engine::Dax => Err(Error::invalid(
            "a queue with the engine dax serves only one image, but this queue also serves other devices",
        )),
        Engine::Nbd => Err(not_nbd()),
        Engine::Image => Err(not_image()),
    }
}

/// Creates the device of an engine over an open file.
///
/// # Errors
/// `Io` if the kernel has no io_uring or cannot map the file.
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
        // The kernel may lack io_uring, or may forbid its use. This call opens a test queue, and returns the error.
        device.queue(&QueueOptions::new().depth(1)).map(|_| device)
    };
    let mut no_io_uring = None;
    let (device, engine) = match engine {
        Engine::Null => (Arc::new(Null::over(psync())) as _, Engine::Null),
        Engine::Dax => {
            let dax = Dax::new(file)?;
            notices.extend(dax.notice().map(str::to_owned));
            (Arc::new(dax) as _, Engine::Dax)
        }
        Engine::Auto if limits.nowait => match uring(false) {
            Ok(device) => (device, Engine::IoUring),
            Err(error) => {
                no_io_uring = Some(NoIoUring::Refused(error.errno()));
                (psync(), Engine::Psync)
            }
        },
        Engine::Auto => {
            no_io_uring = Some(NoIoUring::NoNowait);
            (psync(), Engine::Psync)
        }
        Engine::Psync => (psync(), Engine::Psync),
        Engine::IoUring | Engine::IoUringPoll if !limits.nowait => {
            no_io_uring = Some(NoIoUring::NoNowait);
            notices.push(
                "the device does not support NOWAIT, so io_uring would pass every request to a worker thread: psync is used"
                    .into(),
            );
            (psync(), Engine::Psync)
        }
        Engine::IoUringPoll if !limits.poll => {
            notices.push("the device has no poll queues, so completions are not polled".into());
            (uring(false)?, Engine::IoUring)
        }
        Engine::IoUring => (uring(false)?, Engine::IoUring),
        Engine::IoUringPoll => (uring(true)?, Engine::IoUringPoll),
        Engine::Nbd => return Err(not_nbd()),
        Engine::Image => return Err(not_image()),
    };
    Ok(OpenedEngine { device, engine, no_io_uring, notices })
}
