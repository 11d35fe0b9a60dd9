//! Checks encrypted inodes: their policies, and the names in encrypted directories.
//!
//! Source: "Encryption context" and "Filenames encryption" in Linux's fscrypt documentation.

use std::collections::HashMap;

use super::Checker;
use super::directories::{Entry, Reading};
use super::found::Found;
use super::table::Record;
use crate::error::Place;
use crate::fs::FileType;
use crate::fs::check::Kind;
use crate::fs::ext4::dir_block::entry_code;

/// The minimum length of an encrypted name: one block of the cipher.
const SHORTEST_NAME: usize = 16;
/// The length of the nonce at the end of an encryption context. Each inode has a different nonce. The bytes before the nonce are the
/// policy.
const NONCE: usize = 16;

/// The policies of encrypted inodes. Each policy gets a number. The record of an inode then needs only eight bytes of memory.
#[derive(Default)]
pub(super) struct Policies {
    numbers: HashMap<Vec<u8>, u32>,
    of_inodes: HashMap<u32, u32>,
}

impl Policies {
    fn insert(&mut self, inode: u32, policy: &[u8]) {
        let next = self.numbers.len() as u32;
        let number = *self.numbers.entry(policy.to_vec()).or_insert(next);
        self.of_inodes.insert(inode, number);
    }

    fn get(&self, inode: u32) -> Option<u32> {
        self.of_inodes.get(&inode).copied()
    }
}

/// The policy in an encryption context; `None` if the context is invalid. Contexts of unknown versions are all treated as the same policy,
/// which is empty.
fn policy(context: &[u8]) -> Option<&[u8]> {
    match (context.first()?, context.len()) {
        (1, 28) | (2, 40) => Some(&context[..context.len() - NONCE]),
        (0..=2, _) => None,
        _ => Some(&[]),
    }
}

impl Checker<'_> {
    /// Checks that an encrypted inode has an encryption context. Without the context, the content and the names cannot be decrypted.
    pub(super) fn check_policy(&mut self, number: u32, inode: &Found) {
        let context = self.fs.inode(inode.number).and_then(|inode| inode.encryption_context());
        let what = match context {
            Ok(Some(context)) => match policy(&context) {
                Some(policy) => return self.policies.insert(number, policy),
                None => format!("the encryption context of {} bytes is not valid", context.len()),
            },
            Ok(None) => "the inode has the flag encrypt, but no encryption context".to_owned(),
            // If the attributes or the inode cannot be read, other checks report the error.
            Err(_) => return,
        };
        let place = Place::new("encryption context").inode(inode.number);
        self.findings.add(place, Kind::Damaged { what });
    }

    /// Checks an entry of an encrypted directory. The name must be encrypted. The entry's inode must have the same policy as the directory.
    /// The kernel refuses to open files of another policy in this directory.
    pub(super) fn check_encrypted(
        &mut self,
        reading: &Reading,
        entry: &Entry<'_>,
        record: Record,
        place: Place,
    ) {
        let directory = u32::try_from(reading.inode.number.0).ok();
        let Some(own) = directory.and_then(|number| self.policies.get(number)) else { return };
        if entry.name.len() < SHORTEST_NAME {
            let (stored, rule) = (entry.name.len() as u64, "an encrypted name cannot be so short");
            self.findings.add(place.field("name_len"), Kind::Invalid { stored, rule });
        }
        let encryptable = [FileType::Regular, FileType::Directory, FileType::Symlink]
            .into_iter()
            .any(|known| entry_code(known) == record.file_type);
        let rule = match self.policies.get(entry.target) {
            Some(policy) if policy != own => {
                "the inode is encrypted with another policy than its directory"
            }
            None if encryptable => "the inode is not encrypted, but its directory is",
            _ => return,
        };
        let stored = u64::from(entry.target);
        self.findings.add(place.field("inode"), Kind::Invalid { stored, rule });
    }
}
