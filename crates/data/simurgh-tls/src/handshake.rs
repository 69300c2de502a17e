//! A handshake: a rustls connection until it is established, and what is kept of it then.
//!
//! rustls gets one complete record at a time, and only while it is handshaking. It must not see a
//! key update that comes in the segment of the peer's Finished: it would go to the next secret, and
//! the logged one would be stale.

mod error;
mod secrets;
#[cfg(test)]
mod tests;

use std::fmt;
use std::mem;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, Connection, ConnectionTrafficSecrets,
    ExtractedSecrets, HandshakeKind, ProtocolVersion, ServerConfig, ServerConnection,
};

use crate::record::{
    AES_128_GCM_BYTES, AES_256_GCM_BYTES, CHACHA20_POLY1305_BYTES, Direction, Keys, Suite,
};
use crate::stock::{self, Stock};
pub use error::HandshakeError;
use secrets::{Log, Secrets};

/// Bytes of one handshake that come from the peer, at most: all its flights together.
const BYTES_MAX: usize = 64 * 1024;

/// Lets connections of `config` leave rustls: their secrets may be extracted, and are logged to the
/// thread's memory during [`Handshake::receive`].
pub fn prepare_server(config: &mut ServerConfig) {
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(Log);
}

/// As [`prepare_server`], for a client.
pub fn prepare_client(config: &mut ClientConfig) {
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(Log);
}

/// Whether a handshake needs more from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// More bytes have to come.
    Continues,
    /// [`Handshake::finish`] is next.
    Done,
}

/// An established connection.
#[derive(Debug)]
pub enum Established {
    /// TLS 1.3, AES-128-GCM.
    Aes128(Keys<AES_128_GCM_BYTES>),
    /// TLS 1.3, ChaCha20-Poly1305.
    ChaCha20(Keys<CHACHA20_POLY1305_BYTES>),
    /// TLS 1.3, AES-256-GCM.
    Aes256(Keys<AES_256_GCM_BYTES>),
    /// TLS 1.2, or a configuration that was not prepared.
    Stock(Box<Stock>),
}

/// The result of the negotiation, for counters and logs. `None`: not yet, or not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated<'a> {
    /// The version of TLS.
    pub version: Option<ProtocolVersion>,
    /// The cipher suite.
    pub suite: Option<CipherSuite>,
    /// Whether an earlier session was resumed.
    pub is_resumed: bool,
    /// On a server, the name that the client asked for (SNI).
    pub server_name: Option<&'a str>,
}

/// A handshake under way.
pub struct Handshake {
    connection: Connection,
    is_extracted: bool,
    secrets: Secrets,
    /// Bytes of the peer that rustls did not get yet.
    input: Vec<u8>,
    /// Bytes that rustls got.
    fed: usize,
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").field("held_bytes", &self.held_bytes()).finish_non_exhaustive()
    }
}

impl Handshake {
    /// A server's side.
    ///
    /// # Errors
    /// `config` does not suit rustls.
    pub fn server(config: &Arc<ServerConfig>) -> Result<Self, HandshakeError> {
        let connection = ServerConnection::new(Arc::clone(config))?;
        Ok(Self::new(connection.into(), config.enable_secret_extraction))
    }

    /// A client's side. Appends its first flight to `out`.
    ///
    /// # Errors
    /// `config` does not suit rustls.
    pub fn client(
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
        out: &mut Vec<u8>,
    ) -> Result<Self, HandshakeError> {
        let connection = ClientConnection::new(Arc::clone(config), name)?;
        let mut handshake = Self::new(connection.into(), config.enable_secret_extraction);
        stock::send(&mut handshake.connection, out);
        Ok(handshake)
    }

    fn new(connection: Connection, is_extracted: bool) -> Self {
        let secrets = Secrets::default();
        Self { connection, is_extracted, secrets, input: Vec::new(), fed: 0 }
    }

    /// Takes bytes of the peer. Appends to `out` what the peer has to get; after an error, the
    /// alert, if there is one.
    ///
    /// # Errors
    /// The handshake failed. The peer's bytes are not TLS, or too many, or rustls refuses them.
    pub fn receive(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Progress, HandshakeError> {
        self.input.extend_from_slice(input);
        let is_tls = self.fed > 0 || stock::is_tls(&self.input);
        if !is_tls {
            return Err(HandshakeError::NotTls);
        }
        // Whatever another connection with this configuration left there.
        drop(secrets::take());
        let fed = self.feed();
        stock::send(&mut self.connection, out);
        self.secrets.update(secrets::take());
        fed?;
        if !self.connection.is_handshaking() {
            return Ok(Progress::Done);
        }
        if self.held_bytes() > BYTES_MAX {
            return Err(HandshakeError::TooLong);
        }
        Ok(Progress::Continues)
    }

    fn feed(&mut self) -> Result<(), rustls::Error> {
        let mut used = 0;
        let mut result = Ok(());
        while result.is_ok() && self.connection.is_handshaking() && self.fed <= BYTES_MAX {
            let rest = self.input.get(used..).unwrap_or_default();
            let Some(record) = stock::complete(rest) else { break };
            used += record.len();
            self.fed += record.len();
            result = stock::feed(&mut self.connection, record).map(drop);
        }
        self.input.drain(..used);
        result
    }

    /// Bytes of the peer that this handshake holds at most: never more than 64 KiB after
    /// [`Self::receive`], apart from what came behind the end.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.input.len() + self.fed
    }

    /// The result of the negotiation so far.
    #[must_use]
    pub fn negotiated(&self) -> Negotiated<'_> {
        Negotiated {
            version: self.connection.protocol_version(),
            suite: self.connection.negotiated_cipher_suite().map(|suite| suite.suite()),
            is_resumed: self.connection.handshake_kind() == Some(HandshakeKind::Resumed),
            server_name: match &self.connection {
                Connection::Server(connection) => connection.server_name(),
                Connection::Client(_) => None,
            },
        }
    }

    /// The established connection, and the peer's bytes behind the handshake, which are its first
    /// input.
    ///
    /// # Errors
    /// The handshake is not done, or rustls uses other keys than it logged.
    pub fn finish(mut self) -> Result<(Established, Vec<u8>), HandshakeError> {
        if self.connection.is_handshaking() {
            return Err(HandshakeError::NotDone);
        }
        let rest = mem::take(&mut self.input);
        let is_tls13 = self.connection.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        if !is_tls13 || !self.is_extracted {
            let stock = Stock::new(self.connection);
            return Ok((Established::Stock(Box::new(stock)), rest));
        }
        let is_client = matches!(self.connection, Connection::Client(_));
        let extracted = self.connection.dangerous_extract_secrets()?;
        Ok((established(is_client, &extracted, &self.secrets)?, rest))
    }
}

fn established(
    is_client: bool,
    extracted: &ExtractedSecrets,
    secrets: &Secrets,
) -> Result<Established, HandshakeError> {
    let (suite, ..) = parts(&extracted.tx.1)?;
    Ok(match suite {
        Suite::Aes128Gcm => Established::Aes128(keys(is_client, extracted, secrets)?),
        Suite::ChaCha20Poly1305 => Established::ChaCha20(keys(is_client, extracted, secrets)?),
        Suite::Aes256Gcm => Established::Aes256(keys(is_client, extracted, secrets)?),
    })
}

fn keys<const N: usize>(
    is_client: bool,
    extracted: &ExtractedSecrets,
    secrets: &Secrets,
) -> Result<Keys<N>, HandshakeError> {
    let (to_send, to_open) = match is_client {
        true => (&secrets.client, &secrets.server),
        false => (&secrets.server, &secrets.client),
    };
    let suite = check(&extracted.tx.1, to_send)?;
    check(&extracted.rx.1, to_open)?;
    let to_send = Direction { secret: to_send, number: extracted.tx.0 };
    let to_open = Direction { secret: to_open, number: extracted.rx.0 };
    Keys::new(suite, is_client, to_send, to_open).map_err(|_| HandshakeError::OtherSecrets)
}

/// Compares the key of a logged secret with the one that the connection uses.
fn check(used: &ConnectionTrafficSecrets, secret: &[u8]) -> Result<Suite, HandshakeError> {
    let (suite, key, iv) = parts(used)?;
    let logged = suite.key_and_iv(secret).map_err(|_| HandshakeError::OtherSecrets)?;
    let is_same =
        logged.starts_with(key) && logged.get(key.len()..).is_some_and(|rest| rest.starts_with(iv));
    if is_same { Ok(suite) } else { Err(HandshakeError::OtherSecrets) }
}

fn parts(used: &ConnectionTrafficSecrets) -> Result<(Suite, &[u8], &[u8]), HandshakeError> {
    let (suite, key, iv) = match used {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Suite::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            (Suite::ChaCha20Poly1305, key, iv)
        }
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Suite::Aes256Gcm, key, iv),
        _ => return Err(HandshakeError::OtherSecrets),
    };
    Ok((suite, key.as_ref(), iv.as_ref()))
}
