//! What the users of connections share: TLS over the reactor, and leaving in good order.

use std::collections::VecDeque;

use simurgh_reactor::{Io, Key};

use crate::tls::{TlsClient, TlsConfig, TlsError};

/// The key of no connection.
pub const NO_KEY: Key = Key { slot: u32::MAX, generation: u32::MAX };

/// Connections that are not used any more, and that their servers are to close. Closed from here,
/// the port could not be used for a minute.
#[derive(Debug, Default)]
pub struct Leaving(VecDeque<(u64, Key)>);

impl Leaving {
    /// Gives a server until this time to close a connection. Times never go back.
    pub fn push(&mut self, until_ns: u64, key: Key) {
        self.0.push_back((until_ns, key));
    }

    /// Closes connections whose servers have not done so in time.
    pub fn close_due<T>(&mut self, io: &mut Io<T>, now_ns: u64) {
        while let Some((until_ns, key)) = self.0.front().copied() {
            // Most have ended long before, and are dropped here for it.
            if until_ns > now_ns && io.conn_ref(key).is_some() {
                return;
            }
            self.0.pop_front();
            io.close(key);
        }
    }

    /// When [`Leaving::close_due`] has something to do; `None`: never.
    pub fn next_ns(&self) -> Option<u64> {
        self.0.front().map(|(until_ns, _)| *until_ns)
    }
}

/// Begins TLS on a connection; `out` is emptied and used.
///
/// # Errors
/// As for [`TlsClient::begin`].
pub fn begin_tls<T>(
    io: &mut Io<T>,
    key: Key,
    config: &TlsConfig,
    host: &str,
    out: &mut Vec<u8>,
) -> Result<Box<TlsClient>, String> {
    out.clear();
    let tls = TlsClient::begin(config, host, out)?;
    io.send(key, out);
    Ok(Box::new(tls))
}

/// Decrypts bytes of a connection into `plain`, and answers those of a handshake. `true`: the
/// connection can be used from now on. `out` is emptied and used.
///
/// The error comes beside that, since data and the end of a handshake may come before it.
pub fn receive_tls<T>(
    io: &mut Io<T>,
    key: Key,
    tls: &mut TlsClient,
    cipher: &mut [u8],
    plain: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> (bool, Option<TlsError>) {
    out.clear();
    let was_open = tls.progress().handshake_done;
    let outcome = tls.receive(cipher, plain, out);
    if !out.is_empty() {
        io.send(key, out);
    }
    match outcome {
        Ok(progress) => (progress.handshake_done && !was_open, None),
        Err(error) => (false, Some(error)),
    }
}

/// Encrypts and sends; `out` is emptied and used. Errors are dropped: they mean that the
/// connection is over, and its end is reported.
pub fn send_tls<T>(io: &mut Io<T>, key: Key, tls: &mut TlsClient, plain: &[u8], out: &mut Vec<u8>) {
    out.clear();
    if tls.send(plain, out).is_ok() {
        io.send(key, out);
    }
}
