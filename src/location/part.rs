//! The part of a device that a location selects, and the bounds of this part.

use std::fmt;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "lvm")]
use crate::lvm;
use crate::partition::PartitionTable;
use crate::probe::probe;

/// A part of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// The whole device.
    Whole,
    /// The bytes from this position to the end of the partition that contains the position. If no partition contains the position, the part
    /// ends where the next partition begins. If there is no partition table, the part ends at the end of the device.
    Offset(u64),
    /// The bytes of this range. The partition table is not read.
    Range {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
    },
    /// A partition of the GPT or MBR, by its number. Numbers begin at 1. The logical partitions of an MBR begin at 5.
    Partition(u32),
    /// A logical volume of LVM, whose physical volumes are the device or its partitions.
    Logical {
        /// The name of the volume group.
        group: String,
        /// The name of the logical volume.
        volume: String,
    },
}

/// A part of a device with known bounds.
pub(super) struct Window {
    /// The location of the part on the device.
    pub(super) bounds: Bounds,
    /// A text for the user if the partition table or the LVM metadata have a fault.
    pub(super) fault: Option<String>,
    /// The error to return if the part is opened for writing. `None` if the part can be written.
    pub(super) only_read: Option<Error>,
}

/// The location of a part on its device.
pub(super) enum Bounds {
    /// A single range: the first byte and the length in bytes.
    Range(u64, u64),
    /// The segments and layers of a logical volume.
    #[cfg(feature = "lvm")]
    Stack(lvm::Stack),
}

impl Window {
    /// Creates a part that is a single range and can be read and written.
    fn range(start: u64, len: u64) -> Self {
        Self { bounds: Bounds::Range(start, len), fault: None, only_read: None }
    }

    /// Records a fault of the partition table. A part with a fault can be read but not written: if one copy of a table is lost, the other
    /// copy may be older, and its partitions may overlap other data. This also applies to a part that begins at an offset, because the
    /// table determines the end of this part.
    fn with_fault(mut self, fault: Option<String>) -> Self {
        self.only_read = fault.as_ref().map(|fault| {
            Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{fault}; the partition can be read but not written: repair the table with gdisk, or name the range by @BYTE+LENGTH"
                ),
            )
        });
        self.fault = fault;
        self
    }
}

impl Part {
    /// Finds this part on a device. Returns `None` for the whole device. If a partition or a logical volume ends past the end of the device
    /// and `truncated` is true, returns the bytes that are on the device. If `write` is set, also checks whether the part must not be
    /// written.
    pub(super) fn of(
        &self,
        device: &dyn Device,
        truncated: bool,
        write: bool,
    ) -> Result<Option<Window>> {
        let Some(mut window) = self.find(device, truncated)? else { return Ok(None) };
        let is_found = !matches!(self, Self::Range { .. });
        if write && is_found && window.only_read.is_none() {
            window.only_read = member(device)?;
        }
        Ok(Some(window))
    }

    fn find(&self, device: &dyn Device, truncated: bool) -> Result<Option<Window>> {
        match *self {
            Self::Whole => Ok(None),
            Self::Offset(offset) => from(device, offset).map(Some),
            Self::Logical { ref group, ref volume } => {
                logical(device, group, volume, truncated).map(Some)
            }
            Self::Range { offset, len } => {
                let (_, rest) = rest(device.size(), offset)?;
                if len == 0 || len > rest {
                    return Err(Error::invalid(format!(
                        "a length of {len} bytes at offset {offset} is not possible: the length must be from 1 to {rest}"
                    )));
                }
                Ok(Some(Window::range(offset, len)))
            }
            Self::Partition(number) => partition(device, number, truncated).map(Some),
        }
    }

    /// Parses the name of a logical volume, `VG/LV`. Returns `None` if the text has another form.
    pub(super) fn parse_logical(text: &str) -> Option<Self> {
        let is_name = |name: &str| {
            let is_part = |char: char| char.is_ascii_alphanumeric() || "+_.-".contains(char);
            !matches!(name, "" | "." | "..") && name.chars().all(is_part) && !name.starts_with('-')
        };
        let (group, volume) = text.split_once('/')?;
        (is_name(group) && is_name(volume))
            .then(|| Self::Logical { group: group.to_owned(), volume: volume.to_owned() })
    }

    /// Parses the text after the `@`. Returns `None` if the text is not a valid part, so that it belongs to the name of the file.
    pub(super) fn parse(text: &str) -> Option<Result<Self>> {
        if let Some(number) = text.strip_prefix('p') {
            let number = number.parse().ok().filter(|number| *number > 0);
            return number.map(|number| Ok(Self::Partition(number)));
        }
        let (offset, len) = match text.split_once('+') {
            Some((offset, len)) => (bytes(offset)?, Some(bytes(len)?)),
            None => (bytes(text)?, None),
        };
        let part = offset.and_then(|offset| match len {
            Some(len) => len.map(|len| Self::Range { offset, len }),
            None => Ok(Self::Offset(offset)),
        });
        Some(part.map_err(|()| Error::invalid(format!("the number in @{text} exceeds 64 bits"))))
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => Ok(()),
            Self::Offset(offset) => write!(f, "@{offset}"),
            Self::Range { offset, len } => write!(f, "@{offset}+{len}"),
            Self::Partition(number) => write!(f, "@p{number}"),
            Self::Logical { group, volume } => write!(f, "@{group}/{volume}"),
        }
    }
}

/// Parses a number of bytes. Returns `None` if the text is not a number, and an error if the number exceeds 64 bits.
fn bytes(text: &str) -> Option<Result<u64, ()>> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let (digits, radix) = match digits.strip_prefix("0x") {
        Some(hex) => (hex, 16),
        None => (digits, 10),
    };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return None;
    }
    let value = u64::from_str_radix(digits, radix).ok();
    Some(value.and_then(|value| value.checked_mul(1 << shift)).ok_or(()))
}

fn rest(size: u64, offset: u64) -> Result<(u64, u64)> {
    match size.checked_sub(offset) {
        Some(rest) if rest > 0 => Ok((offset, rest)),
        _ => {
            Err(Error::invalid(format!("offset {offset} is past the end of the device at {size}")))
        }
    }
}

/// Finds the part that begins at an offset: see [`Part::Offset`]. If the partition table cannot be read, the part ends at the end of the
/// device. In this case, the part has a fault and can be read but not written.
fn from(device: &dyn Device, offset: u64) -> Result<Window> {
    let (_, rest) = rest(device.size(), offset)?;
    let (end, fault) = match PartitionTable::read(device) {
        Ok(Some(table)) if table.has_byte(offset) => {
            let fault = format!("byte {offset} belongs to the {}, not to a partition", table.kind);
            (table.end_from(offset), table.fault.or(Some(fault)))
        }
        Ok(Some(table)) => (table.end_from(offset), table.fault),
        Ok(None) => (u64::MAX, None),
        Err(error) => (u64::MAX, Some(error.to_string())),
    };
    Ok(Window::range(offset, rest.min(end - offset)).with_fault(fault))
}

/// Finds a logical volume. If the logical volume is a single range of the device, its I/O costs no more than that of a partition.
#[cfg(feature = "lvm")]
fn logical(device: &dyn Device, group: &str, volume: &str, truncated: bool) -> Result<Window> {
    let groups = match truncated {
        true => lvm::Groups::read_truncated(device)?,
        false => lvm::Groups::read(device)?,
    };
    let stack = groups.find(group, volume)?;
    let only_read = stack.check_writable().err();
    let bounds = match stack.segments() {
        Some([only]) if only.starts.len() == 1 => {
            let (start, rest) = rest(device.size(), only.starts[0])?;
            Bounds::Range(start, only.len.min(rest))
        }
        _ => Bounds::Stack(stack),
    };
    Ok(Window { bounds, fault: groups.faults().first().cloned(), only_read })
}

#[cfg(not(feature = "lvm"))]
fn logical(_: &dyn Device, group: &str, volume: &str, _: bool) -> Result<Window> {
    Err(Error::unsupported(format!(
        "the logical volume {group}/{volume} cannot be read: ironmap was built without the feature lvm"
    )))
}

/// Returns the error for a write to a part of a device that is a member of an MD array. The members would differ after the write.
///
/// # Errors
/// `Io` if the superblock cannot be read.
#[cfg(feature = "md")]
fn member(device: &dyn Device) -> Result<Option<Error>> {
    match crate::md::look(device) {
        Ok(Some(member)) => Ok(Some(Error::unsupported(member.only_read()))),
        Err(error) if matches!(error.kind(), ErrorKind::Io(_)) => Err(error),
        Ok(None) | Err(_) => Ok(None),
    }
}

#[cfg(not(feature = "md"))]
fn member(_: &dyn Device) -> Result<Option<Error>> {
    Ok(None)
}

fn partition(device: &dyn Device, number: u32, truncated: bool) -> Result<Window> {
    let not_found = |what: String| Err(Error::new(ErrorKind::NotFound, what));
    let Some(table) = PartitionTable::read(device)? else {
        return not_found(match probe(device) {
            Some(what) => format!("there is no partition table: the device contains {what}"),
            None => "there is no partition table".to_owned(),
        });
    };
    let found = table.partitions.iter().find(|partition| partition.number == number);
    let Some(found) = found else {
        return not_found(format!("there is no partition {number}; {table}"));
    };
    let (start, len) = found.within(device.size(), truncated)?;
    Ok(Window::range(start, len).with_fault(table.fault))
}
