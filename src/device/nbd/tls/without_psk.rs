//! The replacement for pre-shared keys in a build without the feature `psk`. Addresses with pre-shared keys are already refused when they
//! are parsed.

use std::path::Path;

use super::Client;
use crate::device::nbd::address::WITHOUT_PSK;
use crate::error::{Error, Result};

pub(super) fn client(_keys: &Path, _user: &str) -> Result<Client> {
    Err(Error::unsupported(WITHOUT_PSK))
}
