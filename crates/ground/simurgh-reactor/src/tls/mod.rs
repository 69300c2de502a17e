//! TLS of a shard's connections: where the state of each is, and the step between the bytes of a
//! handler and those of the wire. `shake` does the handshakes, `read` and `write` the rest.
//!
//! A connection with TLS 1.3 keeps its keys alone, in pages by cipher suite; one without TLS keeps
//! nothing. What a handler sends stays plaintext, shared by all who get it, until it is written:
//! then as much as fits one record is sealed into the shard's scratch. What the socket does not
//! take of a record is kept sealed, so no record is sealed twice.

mod read;
mod shake;
mod table;
mod write;

use std::collections::HashMap;
use std::sync::Arc;

use simurgh_data::{Key, Slab};
use simurgh_tls::rustls::ServerConfig;
use simurgh_tls::{
    AES_128_GCM_BYTES, AES_256_GCM_BYTES, CHACHA20_POLY1305_BYTES, Established, Handshake, Keys,
    Record, Stock,
};

use self::shake::Line;
use self::table::Table;

pub(crate) use simurgh_tls::PLAIN_BYTES_MAX;

/// In [`Tls::places`]: which table has the state, and its number there.
const NUMBER: u32 = (1 << 29) - 1;
const NONE: u32 = 0;
/// The handshake has not begun; the number is the listener's.
const NEW: u32 = 1 << 29;
const BOXED: u32 = 2 << 29;
const AES128: u32 = 3 << 29;
const CHACHA20: u32 = 4 << 29;
const AES256: u32 = 5 << 29;

enum Boxed {
    Shaking(Box<Handshake>),
    /// TLS 1.2, or TLS 1.3 with the record layer of rustls.
    Stock(Box<Stock>),
}

/// The state of all connections with TLS.
pub(crate) struct Tls {
    /// By listener.
    configs: Vec<Option<Arc<ServerConfig>>>,
    /// By slot of the connection.
    places: Vec<u32>,
    boxed: Slab<Boxed>,
    aes128: Table<Keys<AES_128_GCM_BYTES>>,
    chacha20: Table<Keys<CHACHA20_POLY1305_BYTES>>,
    aes256: Table<Keys<AES_256_GCM_BYTES>>,
    /// Records that have come in part, by slot, and since when.
    partial: HashMap<u32, (Vec<u8>, u64)>,
    partial_bytes: usize,
    /// The record that is being written.
    scratch: Vec<u8>,
    line: Line,
}

enum Session<'a> {
    Record(Record<'a>),
    Stock(&'a mut Stock),
}

impl Tls {
    pub(crate) fn new(configs: Vec<Option<Arc<ServerConfig>>>) -> Self {
        Self {
            configs,
            places: Vec::new(),
            boxed: Slab::new(),
            aes128: Table::default(),
            chacha20: Table::default(),
            aes256: Table::default(),
            partial: HashMap::new(),
            partial_bytes: 0,
            scratch: Vec::new(),
            line: Line::default(),
        }
    }

    /// Whether connections of a listener begin with a handshake.
    pub(crate) fn is_used_by(&self, listener: u16) -> bool {
        self.configs.get(usize::from(listener)).is_some_and(Option::is_some)
    }

    fn place(&self, key: Key) -> u32 {
        self.places.get(key.slot as usize).copied().unwrap_or(NONE)
    }

    fn set_place(&mut self, key: Key, place: u32) {
        let slot = key.slot as usize;
        if slot >= self.places.len() {
            self.places.resize(slot + 1, NONE);
        }
        if let Some(at) = self.places.get_mut(slot) {
            *at = place;
        }
    }

    /// Notes a connection of a listener, whose handshake begins with its first bytes.
    pub(crate) fn add_new(&mut self, key: Key, listener: u16) {
        self.set_place(key, NEW | u32::from(listener));
    }

    /// The handshake of a connection is done: only its keys are kept. `None`: no memory is left.
    fn establish(&mut self, key: Key, established: Established) -> Option<()> {
        self.forget_state(key);
        let place = match established {
            Established::Aes128(keys) => AES128 | self.aes128.insert(keys)?,
            Established::ChaCha20(keys) => CHACHA20 | self.chacha20.insert(keys)?,
            Established::Aes256(keys) => AES256 | self.aes256.insert(keys)?,
            Established::Stock(stock) => BOXED | self.boxed.insert(Boxed::Stock(stock)),
        };
        self.set_place(key, place);
        Some(())
    }

    fn session(&mut self, key: Key) -> Option<Session<'_>> {
        let place = self.place(key);
        let number = place & NUMBER;
        match place & !NUMBER {
            AES128 => Some(Session::Record(self.aes128.get_mut(number)?.record())),
            CHACHA20 => Some(Session::Record(self.chacha20.get_mut(number)?.record())),
            AES256 => Some(Session::Record(self.aes256.get_mut(number)?.record())),
            BOXED => match self.boxed.get_mut(number)? {
                Boxed::Stock(stock) => Some(Session::Stock(stock)),
                Boxed::Shaking(_) => None,
            },
            _ => None,
        }
    }

    fn forget_state(&mut self, key: Key) {
        let place = self.place(key);
        let number = place & NUMBER;
        match place & !NUMBER {
            AES128 => self.aes128.remove(number),
            CHACHA20 => self.chacha20.remove(number),
            AES256 => self.aes256.remove(number),
            BOXED => {
                let shook = matches!(self.boxed.remove(number), Some(Boxed::Shaking(_)));
                self.line.under_way -= usize::from(shook);
            }
            _ => {}
        }
        self.set_place(key, NONE);
    }

    /// A connection is gone: its keys are wiped.
    pub(crate) fn forget(&mut self, key: Key) {
        self.forget_state(key);
        if let Some((bytes, _)) = self.partial.remove(&key.slot) {
            self.partial_bytes -= bytes.len();
        }
    }
}
