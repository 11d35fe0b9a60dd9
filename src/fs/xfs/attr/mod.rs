//! Extended attributes: in the inode, in leaves, and with values in blocks of their own.

mod acl;
mod leaf;
mod remote;
mod short;

use super::disk::attr::flags;
use super::fork::Format;
use super::inode::XfsInode;
use crate::error::{Error, ErrorKind, Place, Result};
use crate::fs::Xattr;

/// Values of all attributes of a file take no more memory than this.
const MAX_BYTES: usize = 16 << 20;
/// The longest value that the system calls know.
const LONGEST_VALUE: u32 = 64 << 10;

impl XfsInode {
    /// The extended attributes, with the names and values that the system calls give.
    ///
    /// # Errors
    /// `Corrupt`; `LimitExceeded` for values of more than 16 MiB together.
    pub fn xattrs(&self) -> Result<Vec<Xattr>> {
        let mut found = Attributes { xattrs: Vec::new(), bytes: 0 };
        let Some(fork) = &self.attributes else { return Ok(found.xattrs) };
        let place = Place::new("attributes").inode(self.stat.inode);
        match fork.format {
            Format::Local => self.short_attributes(&fork.bytes, &mut found)?,
            Format::Extents if fork.extents == 0 => {}
            Format::Extents | Format::Tree => self.leaf_attributes(fork, &mut found)?,
            Format::Device => return Err(place.field("di_aformat").corrupt("it is a device's")),
        }
        Ok(found.xattrs)
    }
}

/// Attributes that were found so far.
struct Attributes {
    xattrs: Vec<Xattr>,
    bytes: usize,
}

impl Attributes {
    /// Adds an attribute, if the system calls show it. `value` is read only then.
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
            return Err(place.field("namelen").corrupt("a name of 0 bytes"));
        }
        let acl = match (bits & flags::ROOT != 0, name) {
            (true, b"SGI_ACL_FILE") => Some(&b"system.posix_acl_access"[..]),
            (true, b"SGI_ACL_DEFAULT") => Some(&b"system.posix_acl_default"[..]),
            _ => None,
        };
        let prefix: &[u8] = match bits & (flags::ROOT | flags::SECURE) {
            flags::ROOT => b"trusted.",
            flags::SECURE => b"security.",
            0 => b"user.",
            _ => return Err(place.field("flags").corrupt(format!("{bits:#x}"))),
        };
        let value = value()?;
        self.bytes = self.bytes.saturating_add(value.len() + name.len());
        if self.bytes > MAX_BYTES {
            return Err(Error::new(ErrorKind::LimitExceeded, "attributes of more than 16 MiB"));
        }
        let value = if acl.is_some() { acl::to_xattr(&value, place)? } else { value };
        let name = acl.map_or_else(|| [prefix, name].concat(), <[u8]>::to_vec);
        self.xattrs.push(Xattr { name, value });
        Ok(())
    }
}
