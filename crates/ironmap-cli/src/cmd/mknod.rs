//! `ironmap mknod`: makes device nodes and pipes.

use clap::ValueEnum;
use ironmap::fs::NewFile;
use ironmap_image::new::caller;
use ironmap_image::new::umask;
use ironmap_image::volumes::Volumes;
use ironmap_image::{Failure, Report};

use crate::mode::ModeChange;
use crate::target::{self, Target};

/// Makes a block device, a character device or a pipe
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap mknod disk.img:/dev/null c 1 3
  ironmap mknod -m 660 disk.img:/dev/sda b 8 0
  ironmap mknod disk.img:/run/initctl p")]
pub(crate) struct Args {
    /// The mode, in the syntax of chmod
    #[arg(short, long, value_name = "MODE", value_parser = ModeChange::parse)]
    mode: Option<ModeChange>,
    /// The new file
    #[arg(value_name = "VOLUME:/PATH", value_parser = target::target())]
    target: Target,
    /// The type of the file
    #[arg(value_enum)]
    kind: Kind,
    /// The major number (of the driver); decimal, 0x... or 0...
    #[arg(value_parser = number, required_if_eq_any([("kind", "b"), ("kind", "c")]))]
    major: Option<u32>,
    /// The minor number (of the device)
    #[arg(value_parser = number, required_if_eq_any([("kind", "b"), ("kind", "c")]))]
    minor: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A block device
    B,
    /// A character device
    #[value(alias = "u")]
    C,
    /// A named pipe
    P,
}

/// The limits for device numbers: 12 bits for major numbers, and 20 bits for minor numbers. The system call and the on-disk format have the
/// same limits.
const MAJORS: u32 = 1 << 12;
const MINORS: u32 = 1 << 20;

fn number(text: &str) -> Result<u32, String> {
    let parsed = match (text.strip_prefix("0x"), text.strip_prefix('0')) {
        (Some(digits), _) => u32::from_str_radix(digits, 16),
        (None, Some(digits)) if !digits.is_empty() => u32::from_str_radix(digits, 8),
        _ => text.parse(),
    };
    parsed.map_err(|_| format!("invalid device number: '{text}'"))
}

impl Args {
    fn file(&self) -> Result<NewFile<'static>, Failure> {
        let numbers = (self.major.unwrap_or_default(), self.minor.unwrap_or_default());
        if numbers.0 >= MAJORS || numbers.1 >= MINORS {
            return Err(Failure::usage(format_args!(
                "invalid device number {}:{}: the major number must be below {MAJORS}, the minor number below {MINORS}",
                numbers.0, numbers.1
            )));
        }
        match self.kind {
            Kind::B => Ok(NewFile::BlockDevice(numbers.0, numbers.1)),
            Kind::C => Ok(NewFile::CharDevice(numbers.0, numbers.1)),
            Kind::P if self.major.is_some() => Err(Failure::usage("a pipe has no device numbers")),
            Kind::P => Ok(NewFile::Fifo),
        }
    }
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let file = args.file()?;
    // The umask does not apply to a mode from the user.
    let (permissions, umask) = match &args.mode {
        Some(mode) => (mode.apply(0o666, false, umask()), 0),
        None => (0o666, umask()),
    };
    if permissions & !0o777 != 0 {
        return Err(Failure::usage("the mode must contain only permissions, up to 777"));
    }
    Volumes::change(report, |volumes, _| {
        let name = volumes.name(&args.target)?;
        name.check_new_file()?;
        let mut who = caller();
        who.umask = umask;
        let made = name
            .fs()
            .writable()
            .and_then(|writer| writer.create(name.dir, &name.name, file, permissions, &who));
        made.map(drop).map_err(|error| name.failed(&error))
    })
}
