//! TLS of a client: the handshake, then the record layer that the server has, too.

use std::sync::Arc;

use anyhow::{Result, bail};
use simurgh_tls::rustls::ClientConfig;
use simurgh_tls::{Established, Handshake, Progress};

/// The state of one connection.
pub(super) enum Secure {
    Shaking(Box<Handshake>),
    Open(Box<Established>),
    Over,
}

impl Secure {
    /// Begins a handshake; its first bytes are appended to `out`.
    pub(super) fn begin(config: &Arc<ClientConfig>, out: &mut Vec<u8>) -> Result<Self> {
        let handshake = Handshake::client(config, "localhost".try_into()?, out)?;
        Ok(Self::Shaking(Box::new(handshake)))
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    /// Goes on with the handshake; what came behind it is returned once it is done.
    pub(super) fn shake(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Option<Vec<u8>>> {
        let Self::Shaking(handshake) = self else { bail!("there is no handshake") };
        if handshake.receive(input, out)? == Progress::Continues {
            return Ok(None);
        }
        let Self::Shaking(handshake) = std::mem::replace(self, Self::Over) else {
            bail!("there is no handshake")
        };
        let (established, rest) = handshake.finish()?;
        *self = Self::Open(Box::new(established));
        Ok(Some(rest))
    }

    pub(super) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let Self::Open(established) = self else { bail!("the handshake is not done") };
        for piece in plain.chunks(simurgh_tls::PLAIN_BYTES_MAX) {
            match &mut **established {
                Established::Aes128(keys) => keys.record().seal([piece], out)?,
                Established::ChaCha20(keys) => keys.record().seal([piece], out)?,
                Established::Aes256(keys) => keys.record().seal([piece], out)?,
                Established::Stock(stock) => stock.seal([piece], out)?,
            }
        }
        Ok(())
    }

    /// Opens whole records in place: the plaintext, and how much of `input` was used.
    pub(super) fn open(&mut self, input: &mut [u8], out: &mut Vec<u8>) -> Result<(Vec<u8>, usize)> {
        let Self::Open(established) = self else { bail!("the handshake is not done") };
        let mut plain = Vec::new();
        let opened = match &mut **established {
            Established::Aes128(keys) => keys.record().open(input, out),
            Established::ChaCha20(keys) => keys.record().open(input, out),
            Established::Aes256(keys) => keys.record().open(input, out),
            Established::Stock(stock) => {
                let opened = stock.open(input, &mut plain, out);
                return Ok((plain, opened.used));
            }
        };
        plain.extend_from_slice(input.get(opened.plain).unwrap_or_default());
        Ok((plain, opened.used))
    }
}
