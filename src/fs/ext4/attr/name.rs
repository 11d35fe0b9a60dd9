//! Names of attributes: conversion from the system calls' form to the on-disk form.

use super::super::inode::Inode;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::FileType;

/// The maximum length of a name in Linux's system calls, including its prefix.
pub(in crate::fs::ext4) const MAX_FULL_NAME: usize = 255;

/// `e_name_index`: a number that represents the prefix of a name in the system calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::fs::ext4) struct NameIndex(pub(in crate::fs::ext4) u8);

impl NameIndex {
    pub(in crate::fs::ext4) const USER: Self = Self(1);
    pub(in crate::fs::ext4) const ACL_ACCESS: Self = Self(2);
    pub(in crate::fs::ext4) const ACL_DEFAULT: Self = Self(3);
    pub(in crate::fs::ext4) const TRUSTED: Self = Self(4);
    pub(in crate::fs::ext4) const SECURITY: Self = Self(6);
    pub(in crate::fs::ext4) const SYSTEM: Self = Self(7);
    pub(in crate::fs::ext4) const ENCRYPTION: Self = Self(9);

    /// The prefix. Returns `None` for an unknown index, and for index 9, the encryption context. The system calls do not show these
    /// attributes.
    pub(in crate::fs::ext4) fn prefix(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "",
            1 => "user.",
            2 => "system.posix_acl_access",
            3 => "system.posix_acl_default",
            4 => "trusted.",
            6 => "security.",
            7 => "system.",
            8 => "system.richacl",
            10 => "gnu.",
            _ => return None,
        })
    }
}

/// A name in the on-disk form.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Name<'a> {
    pub(super) index: NameIndex,
    pub(super) name: &'a [u8],
}

impl<'a> Name<'a> {
    /// The name of the attribute that contains inline data.
    pub(super) const INLINE_DATA: Self = Self { index: NameIndex::SYSTEM, name: b"data" };

    /// Splits a name into its prefix and the remaining name.
    ///
    /// # Errors
    /// The same errors as in Linux: `AttributeNameLength` for a name that is empty or longer than 255 bytes, `InvalidInput` for a prefix
    /// without a name, `Unsupported` for an unknown prefix. With the prefix `system.`, only access lists can be changed.
    pub(super) fn parse(full: &'a [u8]) -> Result<Self> {
        let len = full.len();
        if !(1..=MAX_FULL_NAME).contains(&len) {
            return Err(Error::new(
                ErrorKind::AttributeNameLength,
                format!("an attribute's name must have 1 to 255 bytes, but has {len}"),
            ));
        }
        for index in [NameIndex::ACL_ACCESS, NameIndex::ACL_DEFAULT] {
            if index.prefix().is_some_and(|whole| whole.as_bytes() == full) {
                return Ok(Self { index, name: b"" });
            }
        }
        for index in [NameIndex::USER, NameIndex::TRUSTED, NameIndex::SECURITY] {
            let prefix = index.prefix().unwrap_or_default();
            match full.strip_prefix(prefix.as_bytes()) {
                Some(b"") => {
                    return Err(Error::invalid(format!(
                        "the attribute's name ends after the prefix {prefix}"
                    )));
                }
                Some(name) => return Ok(Self { index, name }),
                None => {}
            }
        }
        let name = String::from_utf8_lossy(full).into_owned();
        Err(Error::unsupported(format!("the attribute {name} cannot be set or removed")))
    }

    /// Refuses an attribute that a file of this type cannot have.
    pub(super) fn check_type(&self, inode: &Inode) -> Result<()> {
        let refuse = |what| Err(Error::new(ErrorKind::NotPermitted, what));
        match (self.index, inode.file_type) {
            (NameIndex::USER, FileType::Regular | FileType::Directory) => Ok(()),
            (NameIndex::USER, _) => refuse("only files and directories have user attributes"),
            (NameIndex::ACL_ACCESS | NameIndex::ACL_DEFAULT, FileType::Symlink) => {
                Err(Error::unsupported("a symbolic link has no access control list"))
            }
            _ => Ok(()),
        }
    }
}
