//! GUIDs, salts and serial numbers: random, or derived from a seed.

use std::fs::File;
use std::io::Read;

use sha2::{Digest, Sha256};

use crate::failure::Failure;

/// The source of all numbers that identify a disk and its parts.
pub(crate) struct Ids {
    /// The text from which all numbers are derived. If it is `None`, the numbers are random.
    seed: Option<String>,
}

impl Ids {
    pub(crate) fn new(seed: Option<String>) -> Self {
        Self { seed }
    }

    /// Returns 32 bytes for a purpose. With a seed, the same purpose produces the same bytes.
    pub(crate) fn bytes(&self, purpose: &str) -> Result<[u8; 32], Failure> {
        if let Some(seed) = &self.seed {
            return Ok(Sha256::digest(format!("ironmap\0{seed}\0{purpose}")).into());
        }
        let mut bytes = [0; 32];
        let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
        read.map_err(|error| Failure::host("/dev/urandom", error)).map(|()| bytes)
    }

    /// Returns a UUID with the variant of RFC 9562, of version 8 (derived) or version 4 (random).
    pub(crate) fn uuid(&self, purpose: &str) -> Result<[u8; 16], Failure> {
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&self.bytes(purpose)?[..16]);
        let version = if self.seed.is_some() { 0x80 } else { 0x40 };
        uuid[6] = uuid[6] & 0x0F | version;
        uuid[8] = uuid[8] & 0x3F | 0x80;
        Ok(uuid)
    }
}
