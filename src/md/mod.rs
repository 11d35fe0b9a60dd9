//! Arrays of Linux MD (software RAID), read without the kernel's MD driver.
//!
//! This module reads the superblocks of members in the versions 0.90, 1.0, 1.1 and 1.2, and assembles arrays of the levels linear, 0, 1, 4, 5, 6
//! and 10. Data of a missing member are reconstructed.

mod body;
mod layout;
mod old;
mod parity;
mod superblock;
#[cfg(feature = "lvm")]
mod target;

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use self::body::{Body, Slot};
use self::layout::{DISKS, Layout};
use self::superblock::{FAULTY, JOURNAL, SPARE, Superblock};
#[cfg(feature = "lvm")]
pub(crate) use self::target::{Leg, assemble_legs};
use crate::device::Device;
#[cfg(feature = "lvm")]
use crate::device::Within;
use crate::error::{Context, Error, ErrorKind, Result};

/// A device that may be a member of an array.
#[derive(Debug)]
pub struct Member {
    /// The name in messages, such as a path.
    pub name: String,
    /// The device, which is only read.
    pub device: Arc<dyn Device>,
}

/// The array of a member, as the member's superblock describes it. `Display` shows it in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The identity of the array, as mdadm shows it.
    pub uuid: String,
    /// A text with the level, the name, the metadata version and the number of members of the array.
    array: String,
    role: String,
}

/// Describes the array of which a device is a member. Returns `None` if the device has no superblock.
///
/// # Errors
/// `Corrupt` for a damaged superblock; `Unsupported` for a superblock with big-endian numbers; `Io`.
pub fn look(device: &dyn Device) -> Result<Option<Description>> {
    let found = Superblock::read(device)?;
    Ok(found.map(|found| Description {
        array: format!("{} of {} devices, metadata {}", titled(&found), found.disks, found.version),
        role: match found.role(found.number) {
            SPARE => "a spare".to_owned(),
            FAULTY => "a failed device".to_owned(),
            JOURNAL => "the journal".to_owned(),
            role => format!("device {role}"),
        },
        uuid: found.uuid,
    }))
}

/// Describes the array of which a range of a device is a member, as [`look`] does for a device.
///
/// # Errors
/// The errors of [`look`].
#[cfg(feature = "lvm")]
pub(crate) fn look_within(
    device: &dyn Device,
    start: u64,
    len: u64,
) -> Result<Option<Description>> {
    look(&Within { device, start, len })
}

/// Shows a member in one line: `device 1 of the RAID 5 array host:data of 3 devices, metadata 1.2, UUID 0123...`.
impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of the {}, UUID {}", self.role, self.array, self.uuid)
    }
}

impl Description {
    /// The reason why a member must not be written directly, and what the user can do instead.
    pub(crate) fn only_read(&self) -> String {
        format!(
            "the device is {self}: md:DISK,DISK reads the array, and mdadm --zero-superblock removes an old superblock"
        )
    }
}

/// The level and the name of an array: `RAID 5 array host:data`.
fn titled(array: &Superblock) -> String {
    let level = match array.level {
        -1 => "linear".to_owned(),
        level @ (0 | 1 | 4..=6 | 10) => format!("RAID {level}"),
        level => format!("level {level}"),
    };
    let space = if array.name.is_empty() { "" } else { " " };
    format!("{level} array{space}{}", array.name)
}

/// An assembled array. `Display` shows it in one line.
#[derive(Debug)]
pub struct Array {
    device: Arc<dyn Device>,
    faults: Vec<String>,
    shown: String,
}

/// A member with a valid superblock.
struct Found {
    name: String,
    device: Arc<dyn Device>,
    superblock: Superblock,
}

/// Assembles an array from its members, in any order. A member that cannot be used is left out, and recorded as a fault of the array: a
/// member with an older state, a spare, a failed member, or a member with a damaged superblock. If enough members remain, a missing member
/// is only a fault too.
///
/// # Errors
/// - `InvalidInput` if a device is not a member, if the members belong to several arrays, or if a device is given twice.
/// - `NotFound` if too few members are left. The error names the missing roles.
/// - `Unsupported` for levels, layouts and features that ironmap cannot read: a reshape, a write journal, and a degraded array with parity
///   that was not stopped cleanly.
/// - `Corrupt` if superblocks contradict each other, for example after both halves of a mirror were used separately.
pub fn assemble(members: Vec<Member>) -> Result<Array> {
    let mut faults = Vec::new();
    let found = read_all(members, &mut faults)?;
    assemble_found(found, faults)
}

/// Assembles an array from members with valid superblocks. `faults` contains the reasons why other members are not used.
fn assemble_found(found: Vec<Found>, faults: Vec<String>) -> Result<Array> {
    // The choice of the newest member does not depend on the order of the arguments, so a set of members always gives the same content.
    let age = |found: &&Found| {
        let Superblock { events, updated, number, .. } = found.superblock;
        (events, updated, Reverse((found.superblock.role(number), number)))
    };
    let Some(newest) = found.iter().max_by_key(age) else {
        let reasons = faults.join("; ");
        return Err(Error::new(ErrorKind::NotFound, format!("no member can be used: {reasons}")));
    };
    let (array, newest) = (newest.superblock.clone(), newest.name.clone());
    let title = titled(&array);
    if let Some(refusal) = &array.refusal {
        return Err(Error::unsupported(format!("the {title} cannot be read: {refusal}")));
    }
    let assembled = Assembly { array: &array, newest: &newest, slots: Vec::new(), faults };
    let (body, faults) = assembled.build(found).context(|| format!("the {title}"))?;
    let used: Vec<&str> = body.slots.iter().flatten().map(|slot| slot.name.as_str()).collect();
    let shown = format!(
        "{title}, UUID {}, {} of {} devices: {}",
        array.uuid,
        used.len(),
        array.disks,
        used.join(", ")
    );
    Ok(Array { device: body.into_device()?, faults, shown })
}

/// Reads all superblocks. A member with a damaged superblock is not used, and is recorded as a fault.
fn read_all(members: Vec<Member>, faults: &mut Vec<String>) -> Result<Vec<Found>> {
    let mut all: Vec<Found> = Vec::with_capacity(members.len());
    for Member { name, device } in members {
        let superblock = match Superblock::read(&*device) {
            Ok(Some(superblock)) => superblock,
            Ok(None) => {
                return Err(Error::invalid(format!("{name} is not a member of an MD array")));
            }
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io(_)) => {
                faults.push(format!("{name} is left out: {error}"));
                continue;
            }
            Err(error) => return Err(error.context(name)),
        };
        for other in &all {
            let (one, two) = (&other.superblock, &superblock);
            let names = format!("{} and {name}", other.name);
            if (one.version, &one.uuid) != (two.version, &two.uuid) {
                return Err(Error::invalid(format!(
                    "{names} belong to different MD arrays: {} ({}) and {} ({})",
                    titled(one),
                    one.uuid,
                    titled(two),
                    two.uuid
                )));
            }
            // In version 0.90, members have no identities. An older member may then have the same number, so the event counts are compared
            // too.
            let is_copy = match one.device.is_empty() {
                true => (one.number, one.events) == (two.number, two.events),
                false => one.device == two.device,
            };
            if is_copy {
                return Err(Error::invalid(format!(
                    "{names} are the same member of an MD array, or one is a copy of the other"
                )));
            }
        }
        all.push(Found { name, device, superblock });
    }
    Ok(all)
}

/// An array that is being assembled.
struct Assembly<'a> {
    /// The newest superblock, and the name of the member that contains it.
    array: &'a Superblock,
    newest: &'a str,
    slots: Vec<Option<(Slot, Superblock)>>,
    faults: Vec<String>,
}

impl Assembly<'_> {
    fn build(mut self, found: Vec<Found>) -> Result<(Body, Vec<String>)> {
        let disks = self.array.disks;
        if !(1..=DISKS).contains(&disks) {
            return Err(self.corrupt(format!("{disks} members are not valid")));
        }
        self.slots.resize_with(disks, || None);
        for member in found {
            let name = member.name.clone();
            if let Some(reason) = self.place(member)? {
                self.faults.push(format!("{name} is left out: {reason}"));
            }
        }
        let lens = self.slots.iter().flatten().map(|(_, superblock)| superblock.len);
        let lens: Vec<u64> = lens.collect();
        let missing = self.missing();
        if matches!(self.array.level, -1 | 0) && !missing.is_empty() {
            return Err(self.too_few(&missing));
        }
        let (layout, size) = Layout::new(self.array, &lens)?;
        self.check_missing(&layout, &missing)?;
        let has_parity = matches!(layout, Layout::Parity(_));
        let unclean = self.array.dirty && !matches!(layout, Layout::Zones(..));
        if unclean && has_parity && !missing.is_empty() {
            return Err(Error::unsupported(format!(
                "it was not stopped cleanly and lacks the members with the roles {}, so their data cannot be reconstructed (mdadm refuses it without --force)",
                listed(&missing)
            )));
        }
        if unclean {
            let what = if has_parity { "its parity may be wrong" } else { "its copies may differ" };
            self.faults.push(format!("the array was not stopped cleanly: {what}"));
        }
        let slots = self.slots.into_iter().map(|slot| slot.map(|(slot, _)| slot)).collect();
        Ok((Body { slots, layout, size, parity_is_valid: !unclean }, self.faults))
    }

    /// Assigns a member to its role. If the member cannot be used, returns the reason.
    fn place(&mut self, member: Found) -> Result<Option<String>> {
        let Found { name, device, superblock: own } = member;
        let (array, newest) = (self.array, self.newest);
        // If the machine stopped while the superblocks were written, the event counts of the members differ by one. Such members can be
        // used.
        if own.events.saturating_add(1) < array.events {
            return Ok(Some(format!(
                "it is older than {newest} ({} events, not {})",
                own.events, array.events
            )));
        }
        if own.shape() != array.shape() {
            return Err(self.corrupt(format!(
                "{name} and {newest} contradict each other: {} and {}",
                own.shape(),
                array.shape()
            )));
        }
        // The role comes from the newest superblock, because it records all members that have failed.
        let role = match array.role(own.number) {
            SPARE => return Ok(Some("it is a spare".to_owned())),
            FAULTY => return Ok(Some(format!("it has failed, as {newest} says"))),
            JOURNAL => return Ok(Some("it is a journal".to_owned())),
            role => usize::from(role),
        };
        if own.events < array.events && own.role(own.number) != array.role(own.number) {
            return Ok(Some(format!("it has another role in the superblock of {newest}")));
        }
        if own.role(array.number) == FAULTY {
            return Err(self.corrupt(format!(
                "{name} and {newest} each say that the other one has failed: they were used separately; name only one of them"
            )));
        }
        let needed = self.needed(&own);
        let end = own.start.checked_add(needed).filter(|end| *end <= device.size());
        if end.is_none() || needed > own.len {
            return Ok(Some(format!("it has {} bytes, too few for its data", device.size())));
        }
        let Some(slot) = self.slots.get_mut(role) else {
            return Err(self.corrupt(format!("{name} has the role {role}")));
        };
        if let Some((other, old)) = slot {
            if own.replacement {
                return Ok(Some(format!("it is a replacement of {}", other.name)));
            }
            if !old.replacement {
                let what = format!("{} and {name} both have the role {role}", other.name);
                return Err(self.corrupt(what));
            }
            self.faults.push(format!("{} is left out: it is a replacement of {name}", other.name));
        }
        let (start, synced) = (own.start, own.synced);
        let is_same = (own.events, own.updated) == (array.events, array.updated);
        if own.events == array.events && !is_same {
            self.faults.push(format!(
                "{name} and {newest} have the same number of events, but {newest} was changed later: they may have been used separately, and the data of {newest} are preferred"
            ));
        }
        let newest = is_same;
        let bad = own.bad.clone();
        *slot = Some((Slot { name, device, start, synced, bad, newest }, own));
        Ok(None)
    }

    fn corrupt(&self, what: impl Into<String>) -> Error {
        let uuid = &self.array.uuid;
        let uuid = if uuid.is_empty() { uuid.clone() } else { format!(" (UUID {uuid})") };
        Error::new(ErrorKind::Corrupt, format!("{}{uuid}", what.into()))
    }

    /// The length of the part of a member's data that the array uses.
    fn needed(&self, member: &Superblock) -> u64 {
        if matches!(self.array.level, -1 | 0) { member.len } else { self.array.size }
    }

    /// The roles that have no member, or a member that is not completely in sync.
    fn missing(&self) -> Vec<usize> {
        let is_missing = |role: &usize| match &self.slots[*role] {
            Some((slot, own)) => slot.synced < self.needed(own),
            None => true,
        };
        (0..self.slots.len()).filter(is_missing).collect()
    }

    fn too_few(&self, missing: &[usize]) -> Error {
        let reasons: String = self.faults.iter().map(|fault| format!("; {fault}")).collect();
        Error::new(
            ErrorKind::NotFound,
            format!("the members with the roles {} are missing{reasons}", listed(missing)),
        )
    }

    /// Checks that the data of all missing members are available from other members. Records a fault for each missing member.
    fn check_missing(&mut self, layout: &Layout, missing: &[usize]) -> Result<()> {
        let is_enough = match layout {
            Layout::Zones(..) => missing.is_empty(),
            Layout::Parity(parity) => missing.len() <= parity.count,
            Layout::Copies(copies) => copies.groups().all(|first| {
                let mut places = copies.places(first, 0);
                places.any(|(role, _)| missing.binary_search(&role).is_err())
            }),
        };
        if !is_enough {
            return Err(self.too_few(missing));
        }
        for role in missing {
            // If the newest superblock records the failure of the missing member, the missing member is older.
            let is_in_use = self.array.roles.iter().any(|one| usize::from(*one) == *role);
            let disks = self.slots.len();
            self.faults.push(match &self.slots[*role] {
                Some((slot, _)) => format!("{} is not completely in sync", slot.name),
                None if is_in_use => format!(
                    "the member with the role {role} of {disks} devices is missing: it may be newer, so the content may be old"
                ),
                None => format!("the member with the role {role} of {disks} devices is missing"),
            });
        }
        Ok(())
    }
}

/// Roles as a text. If there are more than 20, only the first 20 are listed.
fn listed(roles: &[usize]) -> String {
    const LISTED: usize = 20;
    let shown: Vec<String> = roles.iter().take(LISTED).map(ToString::to_string).collect();
    let more = if roles.len() > LISTED { ", ..." } else { "" };
    shown.join(", ") + more
}

impl Array {
    /// The device of the array. It can only be read.
    #[must_use]
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device)
    }

    /// The faults of the array, one line for each fault: a member that is missing or not used, or an array that was not stopped cleanly.
    #[must_use]
    pub fn faults(&self) -> &[String] {
        &self.faults
    }
}

/// Shows the array in one line: `RAID 5 array host:data, UUID 0123..., 3 of 3 devices: a.img, b.img, c.img`.
impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}
