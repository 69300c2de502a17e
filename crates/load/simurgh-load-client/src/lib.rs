//! Connections of load generators: where they come from, how they are secured, and HTTP/1.1 as a
//! client speaks it. The engine and the HTTP benchmark use it; it measures nothing.

pub mod connection;
pub mod http;
mod md5;
mod resolve;
mod settings;
mod sources;
pub mod tls;

pub use self::md5::md5_hex;
pub use resolve::{mapped, resolve};
pub use settings::{AddressRange, Sources, Tls};
pub use sources::SourcePool;

/// Bytes that may wait for a server before its user gives up: more than a scenario sends at once.
pub const OUTBOUND_BYTES_MAX: usize = 256 << 20;
