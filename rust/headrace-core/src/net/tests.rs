//! Tests of the transport with real servers and with misbehaving peers.

mod names;
mod sockets;
mod tls;

use super::{ConnectError, NeverInterrupted, Transport, block_on, connect};
use crate::endpoint::Endpoint;
use crate::error::Fault;

#[allow(clippy::unwrap_used, clippy::panic)]
pub(crate) fn try_connect(endpoint: &Endpoint) -> Result<Transport, Fault> {
    match block_on(connect(endpoint, &endpoint.settings().unwrap(), &mut NeverInterrupted)) {
        Ok(transport) => Ok(transport),
        Err(ConnectError::Fault(fault)) => Err(fault),
        Err(ConnectError::Interrupted) => panic!("interrupted without a request"),
    }
}
