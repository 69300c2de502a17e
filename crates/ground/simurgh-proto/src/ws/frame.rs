//! The head of one frame (RFC 6455 §5.2), checked: anything invalid is an error.

use thiserror::Error;

use super::close::CloseCode;

/// The longest payload of a control frame, in bytes (RFC 6455 §5.5).
pub(super) const CONTROL_BYTES_MAX: usize = 125;
/// The longest head: two bytes, a 64-bit length and a masking key.
pub(super) const HEAD_BYTES_MAX: usize = 14;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
/// The first reserved bit: the message is compressed (RFC 7692 §6).
const RSV1: u8 = 0x40;
const MASKED: u8 = 0x80;
const LEN_16: u8 = 126;
const LEN_64: u8 = 127;

/// The role of *our* end. A server demands masked frames, a client unmasked (RFC 6455 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// We accepted the connection.
    Server,
    /// We opened the connection.
    Client,
}

/// The kind of a frame (RFC 6455 §11.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OpCode {
    /// A further part of the current message.
    Continuation = 0,
    /// A message of UTF-8 text, or its first part.
    Text = 1,
    /// A message of bytes, or its first part.
    Binary = 2,
    /// The sender closes.
    Close = 8,
    /// Asks for a pong with the same payload.
    Ping = 9,
    /// Answers a ping, or is unsolicited.
    Pong = 10,
}

impl OpCode {
    /// Whether this is a control frame: at most 125 bytes, never fragmented.
    #[must_use]
    pub const fn is_control(self) -> bool {
        self as u8 & 0x08 != 0
    }

    const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::Continuation),
            1 => Some(Self::Text),
            2 => Some(Self::Binary),
            8 => Some(Self::Close),
            9 => Some(Self::Ping),
            10 => Some(Self::Pong),
            _ => None,
        }
    }
}

/// How much a peer may send; more is answered with close code 1009.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// The longest payload of one frame, in bytes.
    pub frame_bytes_max: usize,
    /// The longest message over all its frames, in bytes.
    pub message_bytes_max: usize,
}

impl Default for FrameLimits {
    /// 10 000 000 bytes each, as in Phoenix (PROTOCOL §3).
    fn default() -> Self {
        Self { frame_bytes_max: 10_000_000, message_bytes_max: 10_000_000 }
    }
}

/// An error in a peer's bytes: close the connection with [`FrameError::close_code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A close frame has a code that must not be sent.
    #[error("close code {0} must not be sent")]
    CloseCode(CloseCode),
    /// The payload of a close frame is one byte long.
    #[error("close frame with an incomplete code")]
    CloseTooShort,
    /// A new message begins before the last one is finished.
    #[error("new message inside a fragmented one")]
    ContinuationExpected,
    /// A compressed message is not a whole DEFLATE stream.
    #[error("corrupt compressed message")]
    Compression,
    /// A control frame is fragmented.
    #[error("fragmented control frame")]
    ControlFragmented,
    /// A control frame is longer than 125 bytes.
    #[error("control frame of more than 125 bytes")]
    ControlTooLong,
    /// A frame is longer than [`FrameLimits::frame_bytes_max`].
    #[error("frame too big")]
    FrameTooBig,
    /// A text message, or the reason of a close frame, is not UTF-8.
    #[error("text is not UTF-8")]
    InvalidUtf8,
    /// A length is written in more bytes than it needs.
    #[error("length not in its shortest form")]
    LengthNotMinimal,
    /// The top bit of a 64-bit length is set.
    #[error("length exceeds 63 bits")]
    LengthTopBit,
    /// A frame to a client is masked.
    #[error("masked frame from a server")]
    Masked,
    /// A message is longer than [`FrameLimits::message_bytes_max`].
    #[error("message too big")]
    MessageTooBig,
    /// An opcode (3–7 or 11–15) without a meaning.
    #[error("reserved opcode {0}")]
    ReservedOpCode(u8),
    /// A reserved bit is set that no extension in use gives a meaning there.
    #[error("reserved bit set")]
    ReservedBits,
    /// A continuation frame with nothing to continue.
    #[error("continuation without a message")]
    UnexpectedContinuation,
    /// A frame to a server is not masked.
    #[error("unmasked frame from a client")]
    Unmasked,
}

impl FrameError {
    /// The code to close the connection with: 1002, 1007 or 1009.
    #[must_use]
    pub const fn close_code(self) -> CloseCode {
        match self {
            Self::InvalidUtf8 => CloseCode::INVALID_DATA,
            Self::FrameTooBig | Self::MessageTooBig => CloseCode::TOO_BIG,
            _ => CloseCode::PROTOCOL,
        }
    }
}

/// What a head is checked against, besides its own bytes.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) role: Role,
    pub(super) limits: &'a FrameLimits,
    /// Bytes already gathered of the message in progress; `None` without one.
    pub(super) message_bytes: Option<usize>,
    /// Whether messages may be compressed.
    pub(super) has_deflate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) fin: bool,
    pub(super) opcode: OpCode,
    /// Whether it begins a compressed message.
    pub(super) is_compressed: bool,
    /// Length of the payload, in bytes; within the limits.
    pub(super) payload_bytes: usize,
    /// The masking key of a frame from a client, else `None`.
    pub(super) mask: Option<[u8; 4]>,
    /// Length of the head itself, in bytes.
    pub(super) head_bytes: usize,
}

impl Head {
    /// Reads a head from the front of `bytes`; `None` when more bytes are needed.
    ///
    /// Bytes are checked on arrival in wire order: how they are cut does not change the result.
    #[inline]
    pub(super) fn parse(bytes: &[u8], context: Context<'_>) -> Result<Option<Self>, FrameError> {
        let Some(&first) = bytes.first() else { return Ok(None) };
        let (fin, opcode) = Self::parse_first(first, &context)?;
        let is_compressed = first & RSV1 != 0;
        let Some(&second) = bytes.get(1) else { return Ok(None) };
        let masked = second & MASKED != 0;
        match context.role {
            Role::Server if !masked => return Err(FrameError::Unmasked),
            Role::Client if masked => return Err(FrameError::Masked),
            _ => {}
        }
        let short = second & !MASKED;
        if opcode.is_control() && usize::from(short) > CONTROL_BYTES_MAX {
            return Err(FrameError::ControlTooLong);
        }
        let Some((length, after)) = parse_length(short, bytes.get(2..).unwrap_or_default())? else {
            return Ok(None);
        };
        let payload_bytes = check_limits(length, opcode, context)?;
        let mut head_bytes = bytes.len() - after.len();
        let mut mask = None;
        if masked {
            let Some(key) = after.first_chunk::<4>() else { return Ok(None) };
            mask = Some(*key);
            head_bytes += key.len();
        }
        Ok(Some(Self { fin, opcode, is_compressed, payload_bytes, mask, head_bytes }))
    }

    #[inline]
    fn parse_first(first: u8, context: &Context<'_>) -> Result<(bool, OpCode), FrameError> {
        if first & RESERVED != 0 && !(context.has_deflate && begins_compressed(first)) {
            return Err(FrameError::ReservedBits);
        }
        let in_message = context.message_bytes.is_some();
        let fin = first & FIN != 0;
        let bits = first & 0x0f;
        let opcode = OpCode::from_bits(bits).ok_or(FrameError::ReservedOpCode(bits))?;
        match opcode {
            OpCode::Continuation if !in_message => Err(FrameError::UnexpectedContinuation),
            OpCode::Text | OpCode::Binary if in_message => Err(FrameError::ContinuationExpected),
            _ if opcode.is_control() && !fin => Err(FrameError::ControlFragmented),
            _ => Ok((fin, opcode)),
        }
    }
}

/// Whether its reserved bits are those of a compressed message, on the only frame that may have
/// them: the first of a text or binary message.
const fn begins_compressed(first: u8) -> bool {
    first & RESERVED == RSV1 && matches!(first & 0x0f, 1 | 2)
}

/// The payload length that begins with the seven bits `short`, and what follows it in `bytes`.
#[inline]
fn parse_length(short: u8, bytes: &[u8]) -> Result<Option<(u64, &[u8])>, FrameError> {
    let (length, rest) = match short {
        LEN_16 => {
            let Some((wide, rest)) = bytes.split_first_chunk::<2>() else { return Ok(None) };
            let length = u64::from(u16::from_be_bytes(*wide));
            if length < u64::from(LEN_16) {
                return Err(FrameError::LengthNotMinimal);
            }
            (length, rest)
        }
        LEN_64 => {
            let Some((wide, rest)) = bytes.split_first_chunk::<8>() else { return Ok(None) };
            let length = u64::from_be_bytes(*wide);
            if length >> 63 != 0 {
                return Err(FrameError::LengthTopBit);
            }
            if length <= u64::from(u16::MAX) {
                return Err(FrameError::LengthNotMinimal);
            }
            (length, rest)
        }
        _ => (u64::from(short), bytes),
    };
    Ok(Some((length, rest)))
}

#[inline]
fn check_limits(length: u64, opcode: OpCode, context: Context<'_>) -> Result<usize, FrameError> {
    let length = usize::try_from(length).map_err(|_| FrameError::FrameTooBig)?;
    // A control frame is not part of a message, and may always have 125 bytes.
    if opcode.is_control() {
        return Ok(length);
    }
    if length > context.limits.frame_bytes_max {
        return Err(FrameError::FrameTooBig);
    }
    let gathered = context.message_bytes.unwrap_or(0);
    match gathered.checked_add(length) {
        Some(message) if message <= context.limits.message_bytes_max => Ok(length),
        _ => Err(FrameError::MessageTooBig),
    }
}

/// Writes the head of an unfragmented frame into `out`; returns its length in bytes.
pub(super) fn write_head(
    opcode: OpCode,
    is_compressed: bool,
    payload_bytes: usize,
    mask: Option<[u8; 4]>,
    out: &mut [u8; HEAD_BYTES_MAX],
) -> usize {
    let (short, wide): (u8, &[u8]) = match payload_bytes {
        0..=CONTROL_BYTES_MAX => (payload_bytes as u8, &[]),
        126..=0xffff => (LEN_16, &(payload_bytes as u16).to_be_bytes()),
        _ => (LEN_64, &(payload_bytes as u64).to_be_bytes()),
    };
    let masked = if mask.is_some() { MASKED } else { 0 };
    let first = FIN | if is_compressed { RSV1 } else { 0 } | opcode as u8;
    let parts: [&[u8]; 3] = [&[first, masked | short], wide, mask.as_ref().map_or(&[], |key| key)];
    let mut written = 0;
    for part in parts {
        for &byte in part {
            if let Some(slot) = out.get_mut(written) {
                *slot = byte;
                written += 1;
            }
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8], message_bytes: Option<usize>) -> Result<Option<Head>, FrameError> {
        let limits = FrameLimits { frame_bytes_max: 70_000, message_bytes_max: 100_000 };
        Head::parse(
            bytes,
            Context { role: Role::Client, limits: &limits, message_bytes, has_deflate: false },
        )
    }

    #[test]
    fn frame_heads_of_every_length_are_parsed_back() {
        for payload_bytes in [0, 1, 125, 126, 127, 65_535, 65_536, 70_000] {
            let mut out = [0; HEAD_BYTES_MAX];
            let head_bytes = write_head(OpCode::Binary, false, payload_bytes, None, &mut out);
            let head = parse(&out[..head_bytes], None).unwrap().unwrap();
            assert_eq!((head.payload_bytes, head.head_bytes), (payload_bytes, head_bytes));
            for cut in 0..head_bytes {
                assert_eq!(parse(&out[..cut], None), Ok(None), "{payload_bytes} cut at {cut}");
            }
        }
    }

    #[test]
    fn frame_is_rejected_by_its_first_byte_alone() {
        for bits in 0x10..=0x7f_u8 {
            assert_eq!(parse(&[FIN | bits], None).is_err(), bits & RESERVED != 0, "{bits:x}");
        }
        for bits in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
            assert_eq!(parse(&[FIN | bits], None), Err(FrameError::ReservedOpCode(bits)));
        }
        assert_eq!(parse(&[0x80], None), Err(FrameError::UnexpectedContinuation));
        assert_eq!(parse(&[0x81], Some(0)), Err(FrameError::ContinuationExpected));
        assert_eq!(parse(&[0x02], Some(0)), Err(FrameError::ContinuationExpected));
        for bits in [8, 9, 10] {
            assert_eq!(parse(&[bits], None), Err(FrameError::ControlFragmented));
            assert_eq!(parse(&[FIN | bits], Some(7)), Ok(None));
        }
    }
}
