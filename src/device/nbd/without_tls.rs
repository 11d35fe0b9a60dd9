//! Replaces the module `tls` in a build without the feature `tls`. The parser of addresses has already refused each address with TLS.

use std::convert::Infallible;
use std::io;
use std::time::Instant;

use super::address::WITHOUT_TLS;
use super::stream::Socket;
use super::{Server, Tls};
use crate::error::{Error, Result};

/// A placeholder for the TLS client. No value of this type exists, because `new` always fails.
pub(super) struct Client(Infallible);

impl Client {
    pub(super) fn new(_tls: &Tls, _server: &Server) -> Result<Self> {
        Err(Error::unsupported(WITHOUT_TLS))
    }

    pub(super) fn start(self, _socket: Socket, _until: Instant) -> io::Result<Socket> {
        match self.0 {}
    }
}
