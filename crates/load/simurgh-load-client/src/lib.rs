//! Connections of load generators: source addresses, TLS, a TCP over TUN devices, and an HTTP/1.1
//! client. The engine and the HTTP benchmark use it; it measures nothing.

pub mod connection;
mod digest;
pub mod http;
mod resolve;
mod settings;
mod sources;
pub mod tls;
pub mod tun;

pub use self::digest::{hmac_sha256_hex, md5_hex};
pub use resolve::{mapped, resolve};
pub use settings::{AddressRange, Sources, Tls};
pub use sources::SourcePool;

/// Bytes that may wait for a server before its user is aborted: more than a scenario sends at once.
pub const OUTBOUND_BYTES_MAX: usize = 256 << 20;
