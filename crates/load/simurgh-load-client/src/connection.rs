//! TLS over the reactor and an orderly close, for all kinds of connections.

use std::collections::VecDeque;

use simurgh_reactor::{Io, Key};

use crate::tls::{TlsClient, TlsConfig, TlsError};

/// A key that belongs to no connection.
pub const NO_KEY: Key = Key { slot: u32::MAX, generation: u32::MAX };

/// Connections that are no longer used and wait for their server's close. If we closed them first,
/// the port could not be used for a minute (TIME_WAIT).
#[derive(Debug, Default)]
pub struct Leaving(VecDeque<(u64, Key)>);

impl Leaving {
    /// Waits until this time for the server's close. Times must not decrease.
    pub fn push(&mut self, until_ns: u64, key: Key) {
        self.0.push_back((until_ns, key));
    }

    /// Closes connections whose servers did not close in time.
    pub fn close_due<T>(&mut self, io: &mut Io<T>, now_ns: u64) {
        while let Some((until_ns, key)) = self.0.front().copied() {
            if until_ns > now_ns && io.conn_ref(key).is_some() {
                return;
            }
            self.0.pop_front();
            io.close(key);
        }
    }

    /// When [`Leaving::close_due`] must be called next; `None`: never.
    pub fn next_ns(&self) -> Option<u64> {
        self.0.front().map(|(until_ns, _)| *until_ns)
    }
}

/// Begins TLS on a connection; `out` is emptied and used. Fails as [`TlsClient::begin`] does.
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

/// Decrypts bytes of a connection into `plain`, and answers handshake messages. `true`: the
/// connection can be used from now on. `out` is emptied and used.
///
/// The error comes beside that, since data and the end of a handshake may come before it. If the
/// server has closed ([`Progress::closed`](crate::tls::Progress)), our close is sent, too: the
/// caller then treats the connection as ended, since the server may send its FIN only after ours.
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
    if tls.progress().closed {
        tls.close(out);
    }
    if !out.is_empty() {
        io.send(key, out);
    }
    match outcome {
        Ok(progress) => (progress.handshake_done && !was_open, None),
        Err(error) => (false, Some(error)),
    }
}

/// Encrypts and sends; `out` is emptied and used. Errors are dropped: the end is reported.
pub fn send_tls<T>(io: &mut Io<T>, key: Key, tls: &mut TlsClient, plain: &[u8], out: &mut Vec<u8>) {
    out.clear();
    if tls.send(plain, out).is_ok() {
        io.send(key, out);
    }
}
