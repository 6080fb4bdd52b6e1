//! A connection and its permit, while the answer on it is read.

use super::connection::Connection;
use super::deadline::Deadline;
use super::http1::{Crossing, GiveBack, Upgraded};
use super::permit::ServerPermit;

/// A connection and its place, for one exchange. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) connection: Connection,
    permit: ServerPermit,
}

impl Lease {
    /// For the response of `connection`, whose head has come.
    pub(super) fn new(connection: Connection, permit: ServerPermit) -> Lease {
        let connection = match connection {
            Connection::Http1(connection) if connection.is_sending() => {
                Connection::Crossing(Crossing::new(connection))
            }
            other => other,
        };
        Lease { connection, permit }
    }

    /// The place of the request.
    pub(super) fn permit(&self) -> &ServerPermit {
        &self.permit
    }

    pub(super) fn deadline(&self) -> &Deadline {
        match &self.connection {
            Connection::Http1(connection) => &connection.deadline,
            Connection::Crossing(crossing) => &crossing.deadline,
            Connection::Http2(stream) => stream.deadline(),
        }
    }

    /// The response has been read to its end.
    pub(super) fn give_back(self) {
        let Lease { connection, permit } = self;
        match connection {
            Connection::Http1(connection) => {
                if let Some(connection) = connection.end() {
                    permit.keep(connection);
                }
            }
            Connection::Crossing(crossing) => {
                let most = permit.settings().timeout;
                crossing.end(
                    most,
                    GiveBack::new(move |connection| permit.keep(connection)),
                );
            }
            Connection::Http2(stream) => stream.end(permit.settings().timeout),
        }
    }

    /// The connection has become a tunnel: from now on it belongs to whoever uses that.
    pub(super) fn into_tunnel(self) -> Option<(Upgraded, ServerPermit)> {
        match self.connection {
            Connection::Http1(connection) => Some((connection.upgraded(), self.permit)),
            Connection::Crossing(_) | Connection::Http2(_) => None,
        }
    }
}
