//! WebSocket (RFC 6455) for both roles, as pure functions over bytes.
//!
//! * [`Decoder`] reads whole messages and control frames from a read buffer. It owns memory only
//!   while a frame or message is half received, so an idle connection costs eight bytes.
//! * [`encode()`], [`encode_with`] and [`encode_close`] append one whole frame to a buffer.
//! * [`handshake`] is the HTTP/1.1 upgrade, as a server and as a client.
//!
//! * [`Inflater`] and [`Deflater`] are permessage-deflate (RFC 7692) without context takeover, for
//!   all connections of a thread. No other extension is supported.
mod close;
mod codec;
mod deflate;
mod encode;
mod frame;
pub mod handshake;
mod mask;
mod utf8;

pub use close::{CloseCode, CloseFrame};
pub use codec::{Decoder, Event};
pub use deflate::{Compressed, DEFLATE_BYTES_MIN, Deflated, Deflater, Inflater};
pub use encode::{encode, encode_close, encode_compressed, encode_head, encode_with};
pub use frame::{FrameError, FrameLimits, OpCode, Role};
