//! One server or sentinel: connects to it, performs the handshake, and explains failures.

use std::net::SocketAddr;
use std::time::Duration;

use super::connect_step::ConnectStep;
use super::deadline::{ConnectError, Deadline, Stage};
use super::dial::{dial_tcp, dial_unix};
use super::handshake::{self, Greeting, Mode};
use super::in_thread::in_thread;
use super::resolve::resolve;
use super::stream::Transport;
use super::tls::{TlsStream, server_name};
use crate::endpoint::{Access, Address, client_config};
use crate::error::{Fault, code};
use crate::secret::Secret;

/// A server or a sentinel, and the handshake for it.
pub(super) struct Peer<'a> {
    pub(super) address: &'a Address,
    /// The IP address of its host to use. `None`: all of them are tried until a socket is open.
    pub(super) dial: Option<SocketAddr>,
    /// The peer's name in messages.
    pub(super) title: String,
    pub(super) access: &'a Access,
    pub(super) greeting: Greeting<'a>,
    /// The connect timeout, for messages.
    pub(super) timeout: Duration,
}

impl Peer<'_> {
    /// The addresses of its host; never empty.
    pub(super) async fn addresses(&self, patience: &mut Deadline<'_>) -> Result<Vec<SocketAddr>, ConnectError> {
        let Address::Tcp { host, port } = self.address else {
            return Err(Fault::new(code::CONFIG, "a Unix socket has no IP addresses").into());
        };
        resolve(host, *port, patience).await.map_err(|error| match error {
            ConnectError::Fault(fault) => self.explained(fault, patience.stage()).into(),
            ConnectError::Interrupted => error,
        })
    }

    /// Connects and performs the handshake.
    pub(super) async fn connect(&self, patience: &mut Deadline<'_>) -> Result<Transport, ConnectError> {
        self.find(patience).await.map(|(transport, _)| transport)
    }

    /// Like [`connect`](Self::connect), and also returns what the server is, if the endpoint leaves that open.
    pub(super) async fn find(&self, patience: &mut Deadline<'_>) -> Result<(Transport, Mode), ConnectError> {
        patience.note(ConnectStep::Peer(&self.title));
        let connected = self.authenticated(patience).await;
        if connected.is_ok() {
            patience.note(ConnectStep::Connected);
        }
        connected.map_err(|error| match error {
            ConnectError::Fault(fault) => ConnectError::Fault(self.explained(fault, patience.stage())),
            ConnectError::Interrupted => ConnectError::Interrupted,
        })
    }

    /// Connects with the current password. If the server refuses it and the password has changed in the meantime, as happens
    /// during a rotation, connects once more with the new one.
    async fn authenticated(&self, patience: &mut Deadline<'_>) -> Result<(Transport, Mode), ConnectError> {
        let password = self.slowly(self.access.is_slow(), Access::password, patience).await??;
        self.check_time(patience)?;
        match self.open(password.as_ref(), patience).await {
            Err(ConnectError::Fault(refusal)) if refusal.is_of_password() => {
                let refused = password.clone();
                let changed = move |access: &Access| access.changed_password(refused.as_ref());
                match self.slowly(self.access.is_slow(), changed, patience).await?? {
                    Some(changed) => {
                        self.check_time(patience)?;
                        self.open(Some(&changed), patience).await
                    }
                    None => Err(refusal.into()),
                }
            }
            opened => opened,
        }
    }

    /// Fails if the password provider used up all the time.
    fn check_time(&self, patience: &mut Deadline<'_>) -> Result<(), ConnectError> {
        if self.access.has_provider() {
            patience.enter(Stage::Password);
            patience.check()?;
        }
        Ok(())
    }

    /// Calls a function that uses the access options. If it `is_slow`, since it reads a file or asks the caller, and the call
    /// must not block, it runs on a thread.
    async fn slowly<T: Send + 'static>(
        &self,
        is_slow: bool,
        call: impl FnOnce(&Access) -> T + Send + 'static,
        patience: &mut Deadline<'_>,
    ) -> Result<T, ConnectError> {
        if !is_slow || patience.reads_inline() {
            return Ok(call(self.access));
        }
        patience.enter(Stage::Password);
        let access = self.access.clone();
        in_thread("headrace-connect", move || call(&access), patience).await
    }

    async fn open(
        &self,
        password: Option<&Secret>,
        patience: &mut Deadline<'_>,
    ) -> Result<(Transport, Mode), ConnectError> {
        let tls = match self.access.tls() {
            Some(tls) => {
                let config =
                    self.slowly(true, |access| access.tls().map(client_config).transpose(), patience).await??;
                let name = server_name(tls, self.address)?;
                config.map(|config| (config, name))
            }
            None => None,
        };
        #[cfg(any(test, fuzzing))]
        if let Some(server) = super::mock::dial() {
            return self.greet(Transport::mock(server?), password, patience).await;
        }
        let socket = match self.address {
            Address::Tcp { host, port } => {
                let addresses = match self.dial {
                    Some(address) => vec![address],
                    None => resolve(host, *port, patience).await?,
                };
                for address in &addresses {
                    patience.note(ConnectStep::Address(*address));
                }
                dial_tcp(&addresses, patience).await?
            }
            Address::Unix(path) => dial_unix(path, patience).await?,
        };
        let transport = match (tls, self.address) {
            (None, Address::Tcp { .. }) => Transport::tcp(socket),
            (None, Address::Unix(_)) => Transport::unix(socket),
            (Some((config, name)), _) => {
                patience.enter(Stage::Tls);
                let mut stream = TlsStream::new(socket, config, name)?;
                stream.handshake(patience).await?;
                if let Some(session) = stream.session() {
                    patience.note(ConnectStep::Session(&session));
                }
                if let Some(certificate) = stream.certificate() {
                    patience.note(ConnectStep::Certificate(certificate));
                }
                Transport::tls(stream)
            }
        };
        self.greet(transport, password, patience).await
    }

    async fn greet(
        &self,
        mut transport: Transport,
        password: Option<&Secret>,
        patience: &mut Deadline<'_>,
    ) -> Result<(Transport, Mode), ConnectError> {
        match handshake::run(&mut transport, self.access.username(), password, &self.greeting, patience).await {
            Ok(mode) => Ok((transport, mode)),
            Err(error) => {
                transport.abort();
                Err(error)
            }
        }
    }

    /// Adds the peer's address to the start of a fault's message, and a hint on what to check to its end.
    pub(super) fn explained(&self, fault: Fault, stage: Stage) -> Fault {
        if fault.code == code::CONFIG {
            return fault;
        }
        let title = &self.title;
        let said = &fault.message;
        let ended = fault.code == code::EOF || fault.code == code::RESET;
        let message = if fault.code == code::TIMEOUT {
            let hint = match stage {
                Stage::Tls => "; a server that does not speak TLS here never answers",
                _ => "",
            };
            // Rounded: the remainder of a flush's timeout has nanoseconds.
            let seconds = (self.timeout.as_secs_f64() * 1e3).round() / 1e3;
            format!("cannot connect to {title} within {seconds} s: {said}{hint}")
        } else if ended {
            // The first reply shows it; a sentinel without a password is asked nothing before.
            let is_first = matches!(stage, Stage::Auth | Stage::Select | Stage::Client)
                || (stage == Stage::Request && matches!(self.greeting, Greeting::Lookup));
            let hint =
                if is_first && self.access.tls().is_none() { "; a server that expects TLS here does so" } else { "" };
            format!("cannot connect to {title}: {said} {stage}{hint}")
        } else {
            format!("cannot connect to {title}: {said}")
        };
        // Built again only to truncate the message to the maximum length.
        Fault { message: Fault::new(code::CONNECT, message).message, ..fault }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::endpoint::{Endpoint, Form, OptionValue};

    /// What `fault` becomes for the host `db1`.
    fn explained(fault: Fault, stage: Stage, tls: bool) -> Fault {
        let address = Address::Tcp { host: "db1".to_owned(), port: 6379 };
        let on = OptionValue::Bool(tls);
        let options = [("host", OptionValue::text("db1")), ("stream_key", OptionValue::text("s")), ("tls", on)];
        let endpoint = Endpoint::new(options.map(|(name, value)| (name.to_owned(), value)), Form::Typed).unwrap();
        let (title, timeout) = (address.to_string(), Duration::from_millis(1500));
        Peer { address: &address, dial: None, title, access: endpoint.access(), greeting: Greeting::Lookup, timeout }
            .explained(fault, stage)
    }

    #[test]
    fn a_fault_names_the_address_and_hints_at_a_wrong_port() {
        let said = |code, message: &str, stage, tls| explained(Fault::new(code, message), stage, tls).message;
        assert_eq!(
            said(code::TIMEOUT, "timed out in the TLS handshake", Stage::Tls, true),
            "cannot connect to db1:6379 within 1.5 s: timed out in the TLS handshake; \
             a server that does not speak TLS here never answers"
        );
        assert_eq!(
            said(code::EOF, "the server closed the connection", Stage::Auth, false),
            "cannot connect to db1:6379: the server closed the connection while waiting for the reply to AUTH; \
             a server that expects TLS here does so"
        );
        assert_eq!(
            said(code::EOF, "the server closed the connection", Stage::Auth, true),
            "cannot connect to db1:6379: the server closed the connection while waiting for the reply to AUTH"
        );
        assert_eq!(
            said(code::CONNECT, "connection refused", Stage::Open, false),
            "cannot connect to db1:6379: connection refused"
        );
        assert_eq!(said(code::CONFIG, "cannot read f", Stage::Request, false), "cannot read f");
    }

    #[test]
    fn an_explained_fault_keeps_its_code_and_text() {
        let auth = Fault::from_reply(b"ERR AUTH <password> called without any password").of_command("AUTH");
        let same = explained(auth.clone(), Stage::Auth, false);
        assert!(same.in_auth);
        assert_eq!((same.code, same.text), (auth.code, auth.text));
    }
}
