//! The replacement for pre-shared keys in a build without them. Addresses with them are refused earlier.

use std::path::Path;

use super::Client;
use crate::device::nbd::address::WITHOUT_PSK;
use crate::error::{Error, Result};

pub(super) fn client(_keys: &Path, _user: &str) -> Result<Client> {
    Err(Error::unsupported(WITHOUT_PSK))
}
