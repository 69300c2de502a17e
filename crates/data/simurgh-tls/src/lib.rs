//! TLS for many connections, without I/O: rustls does the handshake, and an established TLS 1.3
//! connection keeps only its secrets.
//!
//! ```text
//! Handshake ─ receive ─► finish ─┬─► Keys<N> ─ record() ─► Record: seal, open, close   TLS 1.3
//!                                └─► Stock: seal, open, close                          TLS 1.2
//! ```
//!
//! A `rustls` connection takes 7.4 kB while it is idle; [`Keys`] take 106 to 154 bytes, inline.
//! [`Record`] is the record layer of RFC 8446 §5 with what may follow a handshake: key updates,
//! alerts, and tickets, which a client ignores. Cryptography is ring's.
//!
//! The one fatal mistake of a record layer is a nonce that is used twice. So [`Keys`] have one
//! owner and cannot be copied, and the number of a record moves before the record is sealed. A
//! sealed record must not be sealed again: keep what the socket does not take.
//!
//! What stays outside: FIPS validation (the record layer would not be in the module), and wiping
//! the stack: keys that are moved, and ring's expanded keys, may leave copies there.
//!
//! The feature `fuzz`, which is off by default, opens the record layer to this project's fuzz
//! targets.
#![forbid(unsafe_code)]

// Tests of modules share the configurations of the others.
#[cfg(test)]
extern crate self as simurgh_tls;

mod handshake;
mod record;
mod stock;

pub use handshake::{
    Established, Handshake, HandshakeError, Negotiated, Progress, prepare_client, prepare_server,
};
#[cfg(feature = "fuzz")]
pub use record::fuzz::run as fuzz_record;
pub use record::{
    AES_128_GCM_BYTES, AES_256_GCM_BYTES, CHACHA20_POLY1305_BYTES, End, INPUT_BYTES_MAX, Keys,
    Opened, PLAIN_BYTES_MAX, Record, SealError, Suite,
};
pub use rustls;
pub use stock::Stock;
