//! Peers: what they were sent, how much of it they take, and the state of their connections.

use super::*;

pub(crate) struct Peer {
    key: Key,
    pub(crate) socket: Socket,
    received: Vec<String>,
    pub(crate) bytes: Vec<u8>,
    /// The last run that it was sent, and how often the next was appended to it.
    last: Option<Run>,
    pub(crate) follows: usize,
    pub(crate) window: usize,
    /// Bytes that it has not taken; and those that it is sent at the end of this turn.
    pub(crate) queued: usize,
    turn: usize,
    is_held: bool,
    is_mute: bool,
    pub(crate) has_input: bool,
    pub(crate) has_shut: bool,
}

#[derive(Default)]
pub(crate) struct TestSockets {
    peers: Vec<Option<Peer>>,
    /// The time of the turn, and of the next reading of the clock, which advances by a step each.
    pub(crate) turn_ns: u64,
    pub(crate) clock_ns: Cell<u64>,
    pub(crate) step_ns: u64,
    deeds: Vec<String>,
    /// Writes of which the system was to gather the pieces, those that were ready, and runs that
    /// waited for their turn's end.
    pub(crate) gathered: usize,
    pub(crate) ready: usize,
    pub(crate) later: usize,
    /// How often frames were compressed.
    pub(crate) compressed: usize,
}

impl TestSockets {
    pub(crate) fn connect(&mut self, phase: Phase, wire: Wire) -> Key {
        let key = Key { slot: self.peers.len() as u32, generation: 1 };
        let mut socket = Socket::new(phase, self.now().tick, NETWORK);
        socket.lead_to(0, wire);
        self.peers.push(Some(Peer {
            key,
            socket,
            received: Vec::new(),
            bytes: Vec::new(),
            last: None,
            follows: 0,
            window: usize::MAX,
            queued: 0,
            turn: 0,
            is_held: false,
            is_mute: false,
            has_input: false,
            has_shut: false,
        }));
        key
    }

    pub(crate) fn find(&self, key: Key) -> Option<&Peer> {
        self.peers.get(key.slot as usize)?.as_ref().filter(|peer| peer.key == key)
    }

    pub(crate) fn peer(&mut self, key: Key) -> &mut Peer {
        self.try_peer(key).expect("it is connected")
    }

    fn try_peer(&mut self, key: Key) -> Option<&mut Peer> {
        self.peers.get_mut(key.slot as usize)?.as_mut().filter(|peer| peer.key == key)
    }

    pub(crate) fn disconnect(&mut self, key: Key) -> Socket {
        self.peers[key.slot as usize].take().expect("it is connected").socket
    }

    pub(crate) fn is_held(&self, key: Key) -> bool {
        self.find(key).is_some_and(|peer| peer.is_held)
    }

    pub(crate) fn deeds(&mut self) -> Vec<String> {
        std::mem::take(&mut self.deeds)
    }

    pub(crate) fn end_turn(&mut self) {
        for peer in self.peers.iter_mut().flatten() {
            let turn = std::mem::take(&mut peer.turn);
            peer.takes(turn);
        }
    }

    fn does(&mut self, what: &str, key: Key) {
        self.deeds.push(format!("{what} {}", key.slot));
    }

    fn ends(&mut self, what: &str, key: Key) {
        self.does(what, key);
        if let Some(peer) = self.try_peer(key) {
            peer.is_mute = true;
        }
    }
}

impl Peer {
    pub(crate) fn received(&mut self) -> Vec<String> {
        std::mem::take(&mut self.received)
    }

    pub(crate) fn takes_more(&mut self, bytes: usize) -> bool {
        let was = self.queued;
        self.queued = was.saturating_sub(bytes);
        was > 0 && self.queued == 0
    }

    fn takes(&mut self, bytes: usize) {
        let taken = if self.queued > 0 { 0 } else { bytes.min(self.window) };
        self.window -= if self.window == usize::MAX { 0 } else { taken };
        self.queued += bytes - taken;
    }

    fn is_sent(&mut self, bytes: &[u8], run: Run) -> bool {
        if !self.is_mute {
            self.reads(bytes);
            let last = self.last.as_mut();
            match last.is_some_and(|last| run.frames().all(|frame| last.push(frame))) {
                true => self.follows += 1,
                false => self.last = Some(run),
            }
            match self.turn {
                0 => self.takes(bytes.len()),
                _ => self.turn += bytes.len(),
            }
        }
        self.queued > 0
    }

    fn reads(&mut self, frames: &[u8]) {
        self.bytes.extend_from_slice(frames);
        let (mut bytes, mut decoder) = (frames.to_vec(), Decoder::new());
        let mut input = bytes.as_mut_slice();
        let limits = FrameLimits { frame_bytes_max: usize::MAX, message_bytes_max: usize::MAX };
        let has_deflate = self.socket.wire.has_deflate();
        while let Some(event) =
            decoder.next_with_deflate(Role::Client, &limits, has_deflate, &mut input).unwrap()
        {
            let event = match event {
                Event::Compressed(it) => it.inflate(&mut Inflater::default(), 1 << 20).unwrap(),
                event => event,
            };
            self.received.push(match event {
                Event::Text(text) => text.into_owned(),
                Event::Binary(data) => format!("binary {}", data.escape_ascii()),
                Event::Close(None) => "close".into(),
                Event::Close(Some(it)) => format!("close {} {}", it.code, it.reason),
                Event::Compressed(_) | Event::Ping(_) | Event::Pong(_) => panic!("{frames:?}"),
            });
        }
        assert!(!decoder.in_message(), "frames are whole");
    }
}

impl Sockets for TestSockets {
    fn now(&self) -> Now {
        Now::from_ns(self.turn_ns)
    }

    fn clock_ns(&self) -> u64 {
        self.clock_ns.replace(self.clock_ns.get() + self.step_ns)
    }

    fn compress(&mut self, _topic: &str, frames: &mut Vec<u8>) {
        self.compressed += 1;
        Deflater::default().compress(frames, false);
    }

    fn socket(&self, key: Key) -> Option<&Socket> {
        Some(&self.find(key)?.socket)
    }

    fn socket_mut(&mut self, key: Key) -> Option<&mut Socket> {
        Some(&mut self.try_peer(key)?.socket)
    }

    fn count(&self) -> usize {
        self.peers.iter().flatten().count()
    }

    fn sweep(
        &mut self,
        cursor: &mut u32,
        records: usize,
        mut visit: impl FnMut(Key, &mut Socket) -> bool,
        found: &mut Vec<Key>,
    ) {
        let first = *cursor as usize;
        let end = (first + records).min(self.peers.len());
        for peer in self.peers[first..end].iter_mut().flatten() {
            if visit(peer.key, &mut peer.socket) {
                found.push(peer.key);
            }
        }
        *cursor = if end == self.peers.len() { 0 } else { end as u32 };
    }

    fn queued(&self, key: Key) -> usize {
        self.find(key).map_or(0, |peer| peer.queued)
    }

    fn has_input(&self, key: Key) -> bool {
        self.find(key).is_some_and(|peer| peer.has_input)
    }

    fn peer_has_shut(&self, key: Key) -> bool {
        self.find(key).is_some_and(|peer| peer.has_shut)
    }

    fn share(&self, bytes: impl AsRef<[u8]> + 'static) -> Shared {
        Shared::new(bytes)
    }

    fn send_with(&mut self, key: Key, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let Some(peer) = self.try_peer(key).filter(|peer| !peer.is_mute) else { return false };
        let mut bytes = Vec::new();
        write(&mut bytes);
        peer.reads(&bytes);
        peer.turn += bytes.len();
        true
    }

    fn send_later(&mut self, key: Key, run: Run) {
        let whole: Vec<u8> = run.frames().flat_map(|it| it.as_bytes().to_vec()).collect();
        assert_eq!(whole.len(), run.len());
        self.later += 1;
        self.send_with(key, |out| out.extend_from_slice(&whole));
    }

    fn send_run(&mut self, key: Key, run: &Run, whole: &[u8]) -> bool {
        let all: Vec<u8> = run.frames().flat_map(|it| it.as_bytes().to_vec()).collect();
        assert!(whole.is_empty() || whole == all, "the same in one piece");
        self.gathered += usize::from(whole.is_empty());
        self.try_peer(key).is_some_and(|peer| peer.is_sent(&all, run.clone()))
    }

    fn send_chosen<'r, R: FnOnce() -> Run>(
        &mut self,
        key: Key,
        choose: impl FnOnce(&Socket) -> Option<(&'r [u8], R)>,
    ) -> Option<bool> {
        let peer = self.try_peer(key)?;
        let (bytes, run) = choose(&peer.socket)?;
        let run = run();
        assert_eq!(run.len(), bytes.len(), "the same in one piece");
        let waits = peer.is_sent(bytes, run);
        self.ready += 1;
        Some(waits)
    }

    fn deliver(&mut self, key: Key, message: &ServerMessage<'_>) {
        let mut text = Vec::new();
        Serializer::V2.server(&mut text, message).unwrap();
        self.peer(key).received.push(String::from_utf8(text).unwrap());
    }

    fn deliver_broadcasts<'a>(
        &mut self,
        key: Key,
        transport: u8,
        broadcasts: impl Iterator<Item = &'a Arc<Broadcast>>,
    ) -> u64 {
        let peer = self.peer(key);
        assert_eq!(transport, peer.socket.transport);
        let before = peer.received.len();
        let heard = |it: &Arc<Broadcast>| {
            format!("{} {} {}", it.topic(), it.event(), it.payload().json().unwrap_or("binary"))
        };
        peer.received.extend(broadcasts.map(heard));
        (peer.received.len() - before) as u64
    }

    fn deliver_close(&mut self, key: Key, code: Option<CloseCode>) {
        self.peer(key).received.push(format!("closed {code:?}"));
    }

    fn hold(&mut self, key: Key) {
        self.does("hold", key);
        self.peer(key).is_held = true;
    }

    fn release(&mut self, key: Key) {
        self.does("release", key);
        self.peer(key).is_held = false;
    }

    fn close(&mut self, key: Key) {
        self.ends("close", key);
    }

    fn shutdown_write(&mut self, key: Key) {
        self.ends("shutdown", key);
    }

    fn abort(&mut self, key: Key) {
        self.ends("abort", key);
    }

    fn abandon(&mut self, key: Key, why: AbandonReason) {
        self.ends(&format!("abandon {why:?}"), key);
    }

    fn stop_listening(&mut self) {
        self.deeds.push("stop listening".into());
    }

    fn stop(&mut self) {
        self.deeds.push("stop".into());
    }
}
