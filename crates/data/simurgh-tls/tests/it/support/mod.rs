//! Configurations, a stock rustls peer, and a connection of ours in front of it.

pub(crate) mod attacker;
pub(crate) mod config;

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use simurgh_tls::rustls;
use simurgh_tls::{
    End, Established, Handshake, HandshakeError, INPUT_BYTES_MAX, PLAIN_BYTES_MAX, Progress,
    Record, Stock,
};

/// Which side is ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Server,
    Client,
}

pub(crate) const SIDES: [Side; 2] = [Side::Server, Side::Client];

/// Stock rustls on the other side.
pub(crate) struct Peer(pub(crate) Connection);

impl Peer {
    pub(crate) fn server(config: &Arc<ServerConfig>) -> Self {
        Self(ServerConnection::new(Arc::clone(config)).unwrap().into())
    }

    pub(crate) fn client(config: &Arc<ClientConfig>) -> Self {
        let name = config::name();
        Self(ClientConnection::new(Arc::clone(config), name).unwrap().into())
    }

    /// All that it has to send.
    pub(crate) fn output(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        while self.0.wants_write() {
            self.0.write_tls(&mut out).unwrap();
        }
        out
    }

    pub(crate) fn write(&mut self, data: &[u8]) {
        self.0.set_buffer_limit(None);
        self.0.writer().write_all(data).unwrap();
    }

    /// Sends `data` and all that waits.
    pub(crate) fn send(&mut self, data: &[u8]) -> Vec<u8> {
        self.write(data);
        self.output()
    }

    /// Takes bytes, and returns their data.
    pub(crate) fn receive(&mut self, mut input: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        let mut data = Vec::new();
        while !input.is_empty() {
            if self.0.read_tls(&mut input).unwrap() == 0 {
                break;
            }
            self.0.process_new_packets()?;
            let _ = self.0.reader().read_to_end(&mut data);
        }
        Ok(data)
    }

    pub(crate) fn has_received_close(&mut self) -> bool {
        self.0.process_new_packets().unwrap().peer_has_closed()
    }
}

/// An established connection of ours, with the incomplete record that a caller keeps.
pub(crate) struct Ours {
    pub(crate) established: Established,
    held: Vec<u8>,
}

impl Ours {
    pub(crate) fn new(handshake: Handshake) -> Self {
        let (established, held) = handshake.finish().unwrap();
        Self { established, held }
    }

    pub(crate) fn with_record<T>(&mut self, work: impl FnOnce(Record<'_>) -> T) -> T {
        match &mut self.established {
            Established::Aes128(keys) => work(keys.record()),
            Established::ChaCha20(keys) => work(keys.record()),
            Established::Aes256(keys) => work(keys.record()),
            Established::Stock(_) => panic!("a stock connection"),
        }
    }

    fn stock(&mut self) -> Option<&mut Stock> {
        match &mut self.established {
            Established::Stock(stock) => Some(stock),
            _ => None,
        }
    }

    /// Takes what a socket gave: data, end and answer.
    pub(crate) fn receive(&mut self, input: &[u8]) -> (Vec<u8>, Option<End>, Vec<u8>) {
        let mut input = [std::mem::take(&mut self.held).as_slice(), input].concat();
        let (mut answer, mut plain) = (Vec::new(), Vec::new());
        let opened = match self.stock() {
            Some(stock) => stock.open(&input, &mut plain, &mut answer),
            None => {
                let opened = self.with_record(|mut record| record.open(&mut input, &mut answer));
                plain = input[opened.plain.clone()].to_vec();
                opened
            }
        };
        self.held = input[opened.used..].to_vec();
        assert!(self.held.len() < INPUT_BYTES_MAX, "more is kept than one record");
        (plain, opened.end, answer)
    }

    /// As [`Self::receive`], in pieces; up to an end.
    pub(crate) fn receive_by(
        &mut self,
        piece: usize,
        input: &[u8],
    ) -> (Vec<u8>, Option<End>, Vec<u8>) {
        let (mut data, mut answer) = (Vec::new(), Vec::new());
        for piece in input.chunks(piece) {
            let (more, end, answered) = self.receive(piece);
            data.extend_from_slice(&more);
            answer.extend_from_slice(&answered);
            if end.is_some() {
                return (data, end, answer);
            }
        }
        (data, None, answer)
    }

    /// Seals `data` in records of several pieces.
    pub(crate) fn send(&mut self, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for record in data.chunks(PLAIN_BYTES_MAX) {
            let (front, back) = record.split_at(record.len() / 3);
            match self.stock() {
                Some(stock) => stock.seal([front, back], &mut out).unwrap(),
                None => {
                    self.with_record(|mut record| record.seal([front, back], &mut out)).unwrap();
                }
            }
        }
        out
    }

    pub(crate) fn close(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        match self.stock() {
            Some(stock) => stock.close(&mut out),
            None => self.with_record(|mut record| record.close(&mut out)),
        }
        out
    }

    pub(crate) fn holds_nothing(&self) -> bool {
        self.held.is_empty()
    }
}

/// Our side of a handshake, and the peer.
pub(crate) struct Pair {
    pub(crate) ours: Handshake,
    pub(crate) peer: Peer,
    out: Vec<u8>,
}

impl Pair {
    pub(crate) fn new(side: Side, server: &Arc<ServerConfig>, client: &Arc<ClientConfig>) -> Self {
        let mut out = Vec::new();
        let (ours, peer) = match side {
            Side::Server => (Handshake::server(server).unwrap(), Peer::client(client)),
            Side::Client => {
                let ours = Handshake::client(client, config::name(), &mut out).unwrap();
                (ours, Peer::server(server))
            }
        };
        Self { ours, peer, out }
    }

    /// Runs the handshake; what the peer sends comes in pieces. As soon as its side is done, it
    /// does `then`, whose output goes with its last flight. Bytes behind the end of our side are
    /// the first input of the connection.
    pub(crate) fn run(
        mut self,
        piece: usize,
        then: impl FnOnce(&mut Peer),
    ) -> Result<(Ours, Peer), HandshakeError> {
        let (mut then, mut input, mut is_done) = (Some(then), Vec::new(), false);
        for _ in 0..10 {
            self.peer.receive(&std::mem::take(&mut self.out))?;
            if !self.peer.0.is_handshaking()
                && let Some(then) = then.take()
            {
                then(&mut self.peer);
            }
            input.extend(self.peer.output());
            if is_done && then.is_none() {
                let (established, mut rest) = self.ours.finish()?;
                rest.extend(input);
                return Ok((Ours { established, held: rest }, self.peer));
            }
            let mut used = 0;
            for piece in input.chunks(piece) {
                if !is_done {
                    used += piece.len();
                    is_done = self.ours.receive(piece, &mut self.out)? == Progress::Done;
                }
            }
            input.drain(..used);
        }
        panic!("the handshake does not end");
    }
}

/// An established pair.
pub(crate) fn established(side: Side, configs: &config::Configs) -> (Ours, Peer) {
    let pair = Pair::new(side, &configs.server, &configs.client);
    let (mut ours, peer) = pair.run(usize::MAX, |_| {}).unwrap();
    // A server's tickets.
    assert_eq!(ours.receive(b""), (Vec::new(), None, Vec::new()));
    (ours, peer)
}
