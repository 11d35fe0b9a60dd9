//! Replaces the module `psk` in a build without the feature `psk`. The parser of addresses has already refused each address with pre-shared
//! keys.

use std::path::Path;

use super::Client;
use crate::device::nbd::address::WITHOUT_PSK;
use crate::error::{Error, Result};

pub(super) fn client(_keys: &Path, _user: &str) -> Result<Client> {
    Err(Error::unsupported(WITHOUT_PSK))
}
