//! The content of a logical volume on the disks. It consists of ranges of the disks, or of hidden logical volumes.

use std::sync::Arc;

use super::Groups;
use super::group::{self, Group, Kind, Logical};
use super::layered::{Layered, Mirror, Pool};
use super::mirror;
use super::text::corrupt;
use super::thin;
use crate::device::{Device, Segment, Segmented};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::md::{Leg as Member, assemble_legs};

/// The maximum number of logical volumes of which a logical volume can consist. RAID volumes have at most 64 legs.
const MOST: usize = 1000;
/// The maximum number of nested layers of logical volumes. A thin volume on RAID has four layers.
const LAYERS: usize = 8;

/// The content of a logical volume on the disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// The length in bytes.
    len: u64,
    body: Body,
    /// The reason why the logical volume cannot be written. `None` if it can be written.
    only_read: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    Segments(Vec<Segment>),
    Raid(Raid),
    /// A mirror: the leg that is read, the log, and the reasons why earlier legs are not used. The log must show that the leg that is read
    /// is in sync. If the first leg is read, no log is needed.
    Mirror(Box<Stack>, Option<Box<(Stack, u64)>>, Vec<String>),
    Thin(Box<Thin>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Raid {
    name: String,
    level: u32,
    stripe: u64,
    /// The legs. An `Err` contains the reason why a leg cannot be used.
    legs: Vec<Result<Leg, String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Leg {
    name: String,
    metadata: Option<Stack>,
    data: Stack,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Thin {
    pool: String,
    transaction: u64,
    chunk: u64,
    volume: u64,
    metadata: Stack,
    data: Stack,
    origin: Option<Stack>,
}

impl Stack {
    /// The segments on the disks. `None` if the logical volume also consists of hidden logical volumes.
    #[must_use]
    pub fn segments(&self) -> Option<&[Segment]> {
        match &self.body {
            Body::Segments(segments) => Some(segments),
            _ => None,
        }
    }

    /// Marks the logical volume as read-only. If it already has a reason, keeps the first reason.
    pub(super) fn only_read(&mut self, reason: String) {
        self.only_read.get_or_insert(reason);
    }

    /// Returns an error if the logical volume can only be read.
    ///
    /// # Errors
    /// `ReadOnly` with the reason.
    pub fn check_writable(&self) -> Result<()> {
        match &self.only_read {
            Some(reason) => {
                Err(Error::read_only(format!("the logical volume can only be read: {reason}")))
            }
            None => Ok(()),
        }
    }

    /// Opens the logical volume on its disks. Ignored faults are added to the list of faults.
    ///
    /// # Errors
    /// `NotFound` if too few legs can be used; `Unsupported` for a state in which ironmap cannot read the logical volume; `Corrupt` if its
    /// metadata contradict each other; `InvalidInput` for a range past the end of its disk; `Io`.
    pub fn open(
        &self,
        disks: &[Arc<dyn Device>],
        faults: &mut Vec<String>,
    ) -> Result<Arc<dyn Device>> {
        let device: Arc<dyn Device> = match &self.body {
            Body::Segments(segments) => {
                let device = Segmented::over(disks.to_vec(), segments)?;
                Arc::new(if self.only_read.is_none() { device.writable() } else { device })
            }
            Body::Raid(raid) => raid.open(disks, faults)?,
            Body::Mirror(leg, log, reasons) => {
                faults.extend(reasons.iter().cloned());
                if let Some(log) = log {
                    let (log, region) = &**log;
                    mirror::check(&*log.open(disks, faults)?, self.len, *region)?;
                }
                leg.open(disks, faults)?
            }
            Body::Thin(body) => {
                let Thin { pool, transaction, chunk, volume, .. } = &**body;
                let (transaction, chunk, volume) = (*transaction, *chunk, *volume);
                let wanted = thin::Wanted { pool, transaction, chunk, volume, len: self.len };
                let metadata = body.metadata.open(disks, faults)?;
                let data = body.data.open(disks, faults)?;
                let origin = body.origin.as_ref().map(|origin| origin.open(disks, faults));
                thin::open(&wanted, metadata, data, origin.transpose()?, faults)?
            }
        };
        match device.size() {
            size if size == self.len => Ok(device),
            size if size > self.len => {
                Ok(Arc::new(Segmented::new(device, &[Segment::linear(0, self.len)])?))
            }
            size => Err(corrupt(format!(
                "the logical volume has {} bytes, but its parts have only {size}",
                self.len
            ))),
        }
    }
}

impl Raid {
    fn open(&self, disks: &[Arc<dyn Device>], faults: &mut Vec<String>) -> Result<Arc<dyn Device>> {
        let mut legs = Vec::with_capacity(self.legs.len());
        for leg in &self.legs {
            legs.push(leg.as_ref().map_err(Clone::clone).and_then(|leg| {
                let name = leg.name.clone();
                let skipped = |error: Error| format!("{name} is left out: {error}");
                let metadata = leg.metadata.as_ref().map(|it| it.open(disks, faults));
                let metadata = metadata.transpose().map_err(skipped)?;
                let data = leg.data.open(disks, faults).map_err(skipped)?;
                Ok(Member { name, metadata, data })
            }));
        }
        let array = assemble_legs(&self.name, self.level, self.stripe, legs)?;
        faults.extend(array.faults().iter().cloned());
        Ok(array.device())
    }
}

/// A search for the parts of a logical volume.
pub(super) struct Search<'a> {
    groups: &'a Groups,
    group: &'a Group,
    /// The number of logical volumes that may still be added.
    left: usize,
    layers: usize,
}

impl<'a> Search<'a> {
    pub(super) fn new(groups: &'a Groups, group: &'a Group) -> Self {
        Self { groups, group, left: MOST, layers: 0 }
    }

    /// Finds the parts of a logical volume.
    ///
    /// # Errors
    /// `Unsupported` for types that ironmap cannot read, and for a physical volume that is on none of the disks; `Corrupt`.
    pub(super) fn stack(&mut self, logical: &Logical) -> Result<Stack> {
        if let Some(fault) = &logical.fault {
            return Err(Error::unsupported(fault.clone()));
        }
        self.left = self.left.checked_sub(1).filter(|_| self.layers < LAYERS).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "it consists of too many logical volumes")
        })?;
        let missing = self.was_missing(&logical.name);
        let missing = missing.then_some("a physical volume was missing when the group was last changed: run vgextend --restoremissing first");
        let hidden = (!logical.visible).then_some("it is a part of other logical volumes");
        let (len, mut only_read) =
            (logical.len, hidden.or(logical.only_read).or(missing).map(str::to_owned));
        let [only] = &logical.segments[..] else {
            let body = self.groups.segments(self.group, logical).map(Body::Segments)?;
            return Ok(Stack { len, body, only_read });
        };
        self.layers += 1;
        let body = match &only.kind {
            Kind::Layered(layered) => {
                only_read = Some("only linear and striped logical volumes can be written".into());
                self.layered(&logical.name, layered)
            }
            _ => self.groups.segments(self.group, logical).map(Body::Segments),
        };
        self.layers -= 1;
        Ok(Stack { len, body: body?, only_read })
    }

    /// Finds another logical volume of the group by its name, and the parts of this logical volume.
    fn named(&mut self, name: &str) -> Result<Stack> {
        let found = self.group.logical(name);
        let found = found.ok_or_else(|| corrupt("it is missing"));
        found.and_then(|logical| self.stack(logical)).context(|| name.to_owned())
    }

    fn layered(&mut self, name: &str, layered: &Layered) -> Result<Body> {
        Ok(match layered {
            Layered::Raid(level, stripe, legs) => {
                let legs = legs.iter().map(|(metadata, data)| {
                    let leg = self.leg(metadata.as_deref(), data);
                    leg.map_err(|error| format!("{data} is left out: {error}"))
                });
                let (name, level, stripe) = (name.to_owned(), *level, *stripe);
                Body::Raid(Raid { name, level, stripe, legs: legs.collect() })
            }
            Layered::Mirror(mirror) => self.mirror(mirror)?,
            Layered::Pool(_) => {
                return Err(Error::unsupported(
                    "it is a thin pool: name one of the thin volumes in it instead",
                ));
            }
            Layered::Thin(pool, volume, origin) => {
                Body::Thin(Box::new(self.thin(pool, *volume, origin.as_deref())?))
            }
        })
    }

    fn leg(&mut self, metadata: Option<&str>, data: &str) -> Result<Leg> {
        let metadata = metadata.map(|metadata| self.named(metadata)).transpose()?;
        Ok(Leg { name: data.to_owned(), metadata, data: self.named(data)? })
    }

    /// Returns the first leg of a mirror that can be used. All legs have equal content if the log shows that they are in sync. The first
    /// leg needs no log.
    fn mirror(&mut self, mirror: &Mirror) -> Result<Body> {
        let mut reasons = Vec::new();
        for (index, name) in mirror.legs.iter().enumerate() {
            let leg = match self.named(name) {
                Ok(_) if self.was_missing(name) => {
                    Err(corrupt("its physical volume was missing when the group was last changed"))
                }
                leg => leg,
            };
            let leg = match leg {
                Ok(leg) => Box::new(leg),
                Err(error) => {
                    reasons.push(format!("{name} is left out: {error}"));
                    continue;
                }
            };
            let log = match &mirror.log {
                _ if index == 0 => None,
                Some(log) => Some(Box::new((self.named(log)?, mirror.region))),
                None => break,
            };
            return Ok(Body::Mirror(leg, log, reasons));
        }
        let reasons = reasons.join("; ");
        Err(Error::new(
            ErrorKind::NotFound,
            format!("no leg of the mirror is known to be complete: {reasons}"),
        ))
    }

    /// Whether a range of a logical volume is on a physical volume that was missing when the group was last changed.
    fn was_missing(&self, name: &str) -> bool {
        let segments = self.group.logical(name).map_or(&[][..], |logical| &logical.segments);
        segments.iter().any(|segment| match &segment.kind {
            Kind::Striped(_, areas) => {
                areas.iter().any(|area| self.group.physical[area.physical].was_missing)
            }
            _ => false,
        })
    }

    fn thin(&mut self, pool: &str, volume: u64, origin: Option<&str>) -> Result<Thin> {
        let found = self.group.logical(pool).and_then(|logical| match &logical.segments[..] {
            [group::Segment { kind: Kind::Layered(Layered::Pool(pool)), .. }] => Some(pool),
            _ => None,
        });
        let Some(Pool { metadata, data, transaction, chunk }) = found else {
            return Err(corrupt(format!("{pool} is not a thin pool")));
        };
        Ok(Thin {
            pool: pool.to_owned(),
            transaction: *transaction,
            chunk: *chunk,
            volume,
            metadata: self.named(metadata)?,
            data: self.named(data)?,
            origin: origin.map(|origin| self.named(origin)).transpose()?,
        })
    }
}
