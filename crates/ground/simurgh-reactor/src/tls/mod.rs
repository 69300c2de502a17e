//! TLS of a shard's connections: where the state of each is, and the step between the bytes of a
//! handler and those of the wire. `io/records.rs` reads and writes them, `shake.rs` has the
//! handshakes.
//!
//! A connection with TLS 1.3 keeps its keys alone, in pages by cipher suite; one without TLS keeps
//! nothing. What a handler sends stays plaintext, shared by all who get it, until it is written:
//! then as much as fits one record is sealed into the shard's scratch. What the socket does not
//! take of a record is kept sealed, so no record is sealed twice.

mod line;
mod table;

use std::collections::HashMap;
use std::sync::Arc;

use simurgh_data::{Key, Slab};
use simurgh_tls::rustls::pki_types::ServerName;
use simurgh_tls::rustls::{ClientConfig, ServerConfig};
use simurgh_tls::{
    AES_128_GCM_BYTES, AES_256_GCM_BYTES, CHACHA20_POLY1305_BYTES, Established, Handshake, Keys,
    Record, Stock,
};

use self::line::Line;
use self::table::Table;

pub(crate) use simurgh_tls::PLAIN_BYTES_MAX;

/// Incomplete records of all connections, bytes. Beyond that the peers are closed whose parts are
/// largest and oldest.
const PARTIAL_BYTES_MAX: usize = 32 << 20;

/// In [`Tls::places`]: which table has the state, and its number there.
const NUMBER: u32 = (1 << 29) - 1;
const NONE: u32 = 0;
/// The handshake has not begun; the number is the listener's.
const NEW: u32 = 1 << 29;
const BOXED: u32 = 2 << 29;
const AES128: u32 = 3 << 29;
const CHACHA20: u32 = 4 << 29;
const AES256: u32 = 5 << 29;
/// A client's handshake that has not begun.
const PLANNED: u32 = 6 << 29;

/// The settings of a client's handshake, and the name that the certificate must have.
pub(crate) struct Plan {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
}

enum Boxed {
    Shaking(Box<Handshake>),
    /// TLS 1.2, or TLS 1.3 with the record layer of rustls.
    Stock(Box<Stock>),
}

/// The state of all connections with TLS.
pub(crate) struct Tls {
    /// By listener.
    configs: Vec<Option<Arc<ServerConfig>>>,
    /// [`crate::Config::has_header`].
    has_header: bool,
    /// By slot of the connection.
    places: Vec<u32>,
    boxed: Slab<Boxed>,
    plans: Slab<Plan>,
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

pub(crate) enum Session<'a> {
    Record(Record<'a>),
    Stock(&'a mut Stock),
}

impl Tls {
    pub(crate) fn new(configs: Vec<Option<Arc<ServerConfig>>>, has_header: bool) -> Self {
        Self {
            configs,
            has_header,
            places: Vec::new(),
            boxed: Slab::new(),
            plans: Slab::new(),
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
    pub(crate) fn establish(&mut self, key: Key, established: Established) -> Option<()> {
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

    pub(crate) fn session(&mut self, key: Key) -> Option<Session<'_>> {
        self.prefetch(key.slot.wrapping_add(1));
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

    fn prefetch(&self, slot: u32) {
        let place = self.places.get(slot as usize).copied().unwrap_or(NONE);
        let number = place & NUMBER;
        match place & !NUMBER {
            AES128 => self.aes128.prefetch(number),
            CHACHA20 => self.chacha20.prefetch(number),
            AES256 => self.aes256.prefetch(number),
            _ => {}
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
            PLANNED => drop(self.plans.remove(number)),
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

impl Tls {
    /// Seals one record of at most [`PLAIN_BYTES_MAX`] bytes. `None`: nothing more can be sent.
    pub(crate) fn seal<'p>(
        &mut self,
        key: Key,
        pieces: impl Iterator<Item = &'p [u8]>,
    ) -> Option<&[u8]> {
        let mut out = std::mem::take(&mut self.scratch);
        out.clear();
        let is_sealed = match self.session(key) {
            Some(Session::Record(mut record)) => record.seal(pieces, &mut out).is_ok(),
            Some(Session::Stock(stock)) => stock.seal(pieces, &mut out).is_ok(),
            None => false,
        };
        self.scratch = out;
        is_sealed.then_some(&*self.scratch)
    }

    pub(crate) fn close(&mut self, key: Key) -> Option<&[u8]> {
        let mut out = std::mem::take(&mut self.scratch);
        out.clear();
        match self.session(key) {
            Some(Session::Record(mut record)) => record.close(&mut out),
            Some(Session::Stock(stock)) => stock.close(&mut out),
            None => {}
        }
        self.scratch = out;
        Some(&*self.scratch).filter(|it| !it.is_empty())
    }
}

impl Tls {
    /// Puts the part of a record that has come before at the front of the buffer; returns its
    /// length.
    pub(crate) fn unread(&mut self, key: Key, buffer: &mut [u8]) -> usize {
        if self.partial.is_empty() {
            return 0;
        }
        let Some((part, _)) = self.partial.remove(&key.slot) else { return 0 };
        self.partial_bytes -= part.len();
        match buffer.get_mut(..part.len()) {
            Some(front) => front.copy_from_slice(&part),
            None => return 0,
        }
        part.len()
    }

    /// Keeps the part of a record.
    pub(crate) fn keep(&mut self, key: Key, part: &[u8], now_ns: u64) {
        if !part.is_empty() {
            self.partial_bytes += part.len();
            self.partial.insert(key.slot, (part.to_vec(), now_ns));
        }
    }

    /// The slots of the connections whose incomplete records are largest and oldest, if those of
    /// all are too large.
    pub(crate) fn to_shed(&self, now_ns: u64) -> Vec<u32> {
        let mut over = self.partial_bytes.saturating_sub(PARTIAL_BYTES_MAX);
        if over == 0 {
            return Vec::new();
        }
        over += PARTIAL_BYTES_MAX / 8;
        let mut found: Vec<(u128, u32, usize)> = Vec::new();
        for (slot, (bytes, since_ns)) in &self.partial {
            let age = u128::from(now_ns.saturating_sub(*since_ns)) + 1;
            found.push((bytes.len() as u128 * age, *slot, bytes.len()));
        }
        found.sort_unstable_by(|one, two| two.cmp(one));
        let mut slots = Vec::new();
        for (_, slot, bytes) in found {
            if over == 0 {
                break;
            }
            over = over.saturating_sub(bytes);
            slots.push(slot);
        }
        slots
    }
}
