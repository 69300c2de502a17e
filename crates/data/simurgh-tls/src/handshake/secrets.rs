//! The traffic secrets of a handshake, which rustls tells only to a key log: through memory of the
//! thread, which is empty between two calls.

use std::cell::RefCell;

use rustls::KeyLog;
use zeroize::Zeroizing;

thread_local! {
    static LOGGED: RefCell<Secrets> = RefCell::default();
}

/// The first application traffic secrets of both sides (RFC 8446 §7.1); empty until logged.
#[derive(Default)]
pub(super) struct Secrets {
    pub(super) client: Zeroizing<Vec<u8>>,
    pub(super) server: Zeroizing<Vec<u8>>,
}

impl Secrets {
    /// Takes those of `logged` that are not empty.
    pub(super) fn update(&mut self, logged: Self) {
        if !logged.client.is_empty() {
            self.client = logged.client;
        }
        if !logged.server.is_empty() {
            self.server = logged.server;
        }
    }
}

/// The secrets that this thread has logged since the last call.
pub(super) fn take() -> Secrets {
    LOGGED.take()
}

/// Writes to [`LOGGED`].
#[derive(Debug)]
pub(super) struct Log;

const CLIENT: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER: &str = "SERVER_TRAFFIC_SECRET_0";

impl KeyLog for Log {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        LOGGED.with_borrow_mut(|logged| match label {
            CLIENT => logged.client = Zeroizing::new(secret.to_vec()),
            SERVER => logged.server = Zeroizing::new(secret.to_vec()),
            _ => {}
        });
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, CLIENT | SERVER)
    }
}
