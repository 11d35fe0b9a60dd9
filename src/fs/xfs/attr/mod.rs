//! Extended attributes: in the inode, in leaf blocks, or in leaf blocks with the value in separate blocks.

mod acl;
mod changes;
mod leaf;
mod remote;
mod short;

pub(super) use self::changes::{Attribute, AttributeChange, AttributeChanges};
use super::disk::attr::flags;
use super::fork::Format;
use super::inode::XfsInode;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::Xattr;

/// The maximum memory for the values of all attributes of a file.
const MAX_BYTES: usize = 16 << 20;
/// The longest value that the system calls permit.
const LONGEST_VALUE: u32 = 64 << 10;

impl XfsInode {
    /// The extended attributes, with the names and values that the system calls return.
    ///
    /// # Errors
    /// `Corrupt`; `LimitExceeded` if the values exceed 16 MiB in total.
    pub fn xattrs(&self) -> Result<Vec<Xattr>> {
        let mut found = Attributes { all: Vec::new(), bytes: 0 };
        self.attributes_as_stored(&mut found)?;
        let mut all = found.all;
        let changes = &self.fs.attribute_changes;
        changes.apply((self.stat.inode, self.stat.generation), &mut all);
        // Attributes that the log adds count toward the same limit.
        let size = |attribute: &Attribute| attribute.name.len() + attribute.value.len();
        if changes.has(self.stat.inode) && all.iter().map(size).sum::<usize>() > MAX_BYTES {
            return Err(too_many());
        }
        let place = Place::new("attributes").inode(self.stat.inode);
        let shown = all.into_iter().filter(|attribute| attribute.bits & flags::PARENT == 0);
        shown.map(|attribute| attribute.into_xattr(place)).collect()
    }

    /// Reads the attributes as stored, without the unfinished changes in the log.
    fn attributes_as_stored(&self, found: &mut Attributes) -> Result<()> {
        let Some(fork) = &self.attributes else { return Ok(()) };
        let place = Place::new("attributes").inode(self.stat.inode);
        match fork.format {
            Format::Local => self.short_attributes(&fork.bytes, found),
            Format::Extents if fork.extents == 0 => Ok(()),
            Format::Extents | Format::Tree => self.leaf_attributes(fork, found),
            Format::Device => Err(place
                .field("di_aformat")
                .corrupt("the attribute fork has the format of a device")),
        }
    }
}

/// The attributes found so far, except attributes that the system calls hide.
struct Attributes {
    all: Vec<Attribute>,
    bytes: usize,
}

impl Attributes {
    /// Adds an attribute, if the system calls show it. `value` is called only if the attribute is added.
    fn add(
        &mut self,
        name: &[u8],
        bits: u8,
        place: Place,
        value: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<()> {
        if bits & (flags::INCOMPLETE | flags::PARENT) != 0 {
            return Ok(());
        }
        if name.is_empty() {
            return Err(place.field("namelen").corrupt("an attribute's name has length 0"));
        }
        if bits & (flags::ROOT | flags::SECURE) == flags::ROOT | flags::SECURE {
            return Err(place.field("flags").corrupt(format!("{bits:#x}")));
        }
        let value = value()?;
        self.bytes = self.bytes.saturating_add(value.len() + name.len());
        if self.bytes > MAX_BYTES {
            return Err(too_many());
        }
        let bits = bits & (flags::ROOT | flags::SECURE);
        self.all.push(Attribute { bits, name: name.to_vec(), value });
        Ok(())
    }
}

fn too_many() -> Error {
    Error::new(ErrorKind::LimitExceeded, "the attributes have more than 16 MiB")
}

impl Attribute {
    /// Converts the attribute to the form of the system calls.
    fn into_xattr(self, place: Place) -> Result<Xattr> {
        let Self { bits, name, value } = self;
        let acl = match (bits & flags::ROOT != 0, &name[..]) {
            (true, b"SGI_ACL_FILE") => Some(&b"system.posix_acl_access"[..]),
            (true, b"SGI_ACL_DEFAULT") => Some(&b"system.posix_acl_default"[..]),
            _ => None,
        };
        if let Some(name) = acl {
            return Ok(Xattr { name: name.to_vec(), value: acl::to_xattr(&value, place)? });
        }
        let prefix: &[u8] = match bits {
            flags::ROOT => b"trusted.",
            flags::SECURE => b"security.",
            _ => b"user.",
        };
        Ok(Xattr { name: [prefix, &name].concat(), value })
    }
}
