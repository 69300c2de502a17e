//! The stack's connections to servers of another TCP (smoltcp), over a link that loses, repeats
//! and overtakes packets: all bytes arrive once and in order, and both sides close.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use ::smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use ::smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use ::smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use ::smoltcp::time::Instant;
use ::smoltcp::wire::{HardwareAddress, IpCidr, Ipv4Address};
use proptest::prelude::*;
use simurgh_reactor::Key;

use super::super::stack::{Arrival, Link, Stack};
use super::super::tcp::End;
use super::network;

/// Packets on their way to one side.
#[derive(Default)]
struct Queue(VecDeque<Vec<u8>>);

impl Link for Queue {
    fn send(&mut self, packet: &[u8]) {
        self.0.push_back(packet.to_vec());
    }
}

#[derive(Default)]
struct Server {
    input: Queue,
    output: Queue,
}

struct Packet(Vec<u8>);
struct Room<'q>(&'q mut Queue);

impl RxToken for Packet {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, bytes: usize, fill: F) -> R {
        let mut packet = vec![0; bytes];
        let result = fill(&mut packet);
        self.0.send(&packet);
        result
    }
}

impl Device for Server {
    type RxToken<'q> = Packet;
    type TxToken<'q> = Room<'q>;

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = 1500;
        capabilities
    }

    fn receive(&mut self, _: Instant) -> Option<(Packet, Room<'_>)> {
        self.input.0.pop_front().map(|packet| (Packet(packet), Room(&mut self.output)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        Some(Room(&mut self.output))
    }
}

/// How bad the link is. It becomes good after some packets, so that every case ends.
#[derive(Clone, Debug)]
struct Faults {
    seed: u64,
    loss_percent: u8,
    repeat_percent: u8,
    delay_ms_max: u64,
    packets: usize,
}

/// One connection: bytes in both directions, and who closes first.
#[derive(Clone, Copy, Debug)]
struct Plan {
    to_server: usize,
    to_client: usize,
    server_buffer: usize,
    server_closes: bool,
    /// Until then the user does not read.
    reads_at_ms: u64,
}

struct Connection {
    plan: Plan,
    place: u32,
    key: Key,
    socket: SocketHandle,
    /// Arrived at the client, and at the server.
    client_has: Vec<u8>,
    server_has: Vec<u8>,
    server_sent: usize,
    is_held: bool,
    is_connected: bool,
    has_closed: bool,
    ends: Vec<End>,
}

/// The byte at a position of one direction.
fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

fn bytes(range: std::ops::Range<usize>) -> Vec<u8> {
    range.map(byte).collect()
}

struct World {
    now_ms: u64,
    random: fastrand::Rng,
    faults: Faults,
    stack: Stack,
    from_client: Queue,
    server: Server,
    interface: Interface,
    sockets: SocketSet<'static>,
    /// Due time, whether to the server, and packet.
    way: Vec<(u64, bool, Vec<u8>)>,
    connections: Vec<Connection>,
}

impl World {
    fn new(faults: Faults, plans: Vec<Plan>) -> Self {
        let mut server = Server::default();
        let config = Config::new(HardwareAddress::Ip);
        let mut interface = Interface::new(config, &mut server, Instant::ZERO);
        let address = Ipv4Address::new(10, 200, 0, 1);
        interface.update_ip_addrs(|all| all.push(IpCidr::new(address.into(), 15)).unwrap());
        let mut world = Self {
            now_ms: 0,
            random: fastrand::Rng::with_seed(faults.seed),
            faults,
            stack: Stack::new(&network(), u32::MAX - 5000),
            from_client: Queue::default(),
            server,
            interface,
            sockets: SocketSet::new(Vec::new()),
            way: Vec::new(),
            connections: Vec::new(),
        };
        for (slot, plan) in (0..).zip(plans) {
            world.connect(slot, plan);
        }
        world
    }

    fn connect(&mut self, slot: u32, plan: Plan) {
        let buffer = || SocketBuffer::new(vec![0; plan.server_buffer]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.listen(4000 + slot as u16).unwrap();
        let to = SocketAddrV4::new([10, 200, 0, 1].into(), 4000 + slot as u16);
        let key = Key { slot, generation: 0 };
        let place = self.stack.connect(&mut self.from_client, 0, to, key).unwrap();
        let wanted = bytes(0..plan.to_server);
        self.stack.send(&mut self.from_client, 0, (place, key), &wanted);
        self.connections.push(Connection {
            is_held: plan.reads_at_ms > 0,
            plan,
            place,
            key,
            socket: self.sockets.add(socket),
            client_has: Vec::new(),
            server_has: Vec::new(),
            server_sent: 0,
            is_connected: false,
            has_closed: false,
            ends: Vec::new(),
        });
    }

    /// Puts a packet on its way, as the faults have it.
    fn carry(&mut self, to_server: bool, packet: &[u8]) {
        let is_bad = self.faults.packets > 0;
        self.faults.packets = self.faults.packets.saturating_sub(1);
        if is_bad && self.random.u8(..100) < self.faults.loss_percent {
            return;
        }
        let copies = 1 + u8::from(is_bad && self.random.u8(..100) < self.faults.repeat_percent);
        for _ in 0..copies {
            let delay_ms = if is_bad { self.random.u64(..=self.faults.delay_ms_max) } else { 0 };
            self.way.push((self.now_ms + delay_ms, to_server, packet.to_vec()));
        }
    }

    fn deliver(&mut self) {
        for packet in std::mem::take(&mut self.from_client.0) {
            self.carry(true, &packet);
        }
        for packet in std::mem::take(&mut self.server.output.0) {
            self.carry(false, &packet);
        }
        let now_ms = self.now_ms;
        for (_, to_server, mut packet) in self.way.extract_if(.., |way| way.0 <= now_ms) {
            if to_server {
                self.server.input.send(&packet);
                continue;
            }
            let arrival = self.stack.receive(&mut self.from_client, now_ms, &mut packet);
            let Some(Arrival { key, is_connected, data, end }) = arrival else { continue };
            let connection = &mut self.connections[key.slot as usize];
            assert!(!connection.has_closed, "its user is gone");
            connection.is_connected |= is_connected;
            if connection.is_held && !data.is_empty() {
                self.stack.hold((connection.place, key), data);
            } else {
                connection.client_has.extend_from_slice(data);
            }
            connection.ends.extend(end);
        }
    }

    fn run_clients(&mut self) {
        let Self { stack, from_client, now_ms, connections, .. } = self;
        for connection in connections.iter_mut().filter(|it| !it.has_closed) {
            let (place, Plan { to_client, server_closes, reads_at_ms, .. }) =
                ((connection.place, connection.key), connection.plan);
            if connection.is_held && *now_ms >= reads_at_ms {
                connection.is_held = false;
                connection.client_has.extend(stack.read(place).0);
            }
            let has_all = connection.is_connected && connection.client_has.len() == to_client;
            if has_all && (!server_closes || connection.ends == [End::Closed]) {
                stack.close(from_client, *now_ms, place);
                connection.has_closed = true;
            }
        }
        stack.flush(from_client, *now_ms);
        while let Some((key, end)) = stack.run_due(from_client, *now_ms) {
            connections[key.slot as usize].ends.push(end);
        }
    }

    fn run_servers(&mut self) {
        let now = Instant::from_millis(self.now_ms as i64);
        self.interface.poll(now, &mut self.server, &mut self.sockets);
        for connection in &mut self.connections {
            let socket = self.sockets.get_mut::<Socket<'_>>(connection.socket);
            while let Ok(bytes @ 1..) = socket.recv(|bytes| {
                connection.server_has.extend_from_slice(bytes);
                (bytes.len(), bytes.len())
            }) {
                assert!(bytes <= connection.plan.server_buffer);
            }
            let Plan { to_client, to_server, server_closes, .. } = connection.plan;
            if socket.can_send() {
                let rest = bytes(connection.server_sent..to_client);
                connection.server_sent += socket.send_slice(&rest).unwrap();
            }
            let has_sent = connection.server_sent == to_client;
            let has_all = connection.server_has.len() == to_server;
            let is_first = server_closes && socket.state() == State::Established && has_all;
            if has_sent && (is_first || socket.state() == State::CloseWait) {
                socket.close();
            }
        }
        self.interface.poll(now, &mut self.server, &mut self.sockets);
    }

    fn is_over(&self) -> bool {
        let is_closed = |connection: &Connection| {
            let state = self.sockets.get::<Socket<'_>>(connection.socket).state();
            matches!(state, State::Closed | State::TimeWait)
        };
        self.stack.is_empty() && self.connections.iter().all(is_closed)
    }

    /// smoltcp 0.14 has lost a FIN: after three acknowledgements of the byte before a FIN without
    /// data, it stops the timer of the FIN and sends nothing.
    fn server_has_lost_fin(&self) -> bool {
        self.connections.iter().any(|connection| {
            let socket = self.sockets.get::<Socket<'_>>(connection.socket);
            let is_closing =
                matches!(socket.state(), State::FinWait1 | State::Closing | State::LastAck);
            is_closing && socket.send_queue() == 0
        })
    }

    /// Runs until both sides have closed; `false` if the server never will.
    fn run(&mut self) -> bool {
        for _ in 0..200_000 {
            self.deliver();
            self.run_servers();
            self.run_clients();
            if self.is_over() {
                return true;
            }
            let now = Instant::from_millis(self.now_ms as i64);
            let server = self.interface.poll_at(now, &self.sockets);
            let server = server.map(|at| at.total_millis() as u64);
            let way = self.way.iter().map(|way| way.0).min();
            let read = self.connections.iter().filter(|it| it.is_held && !it.has_closed);
            let read = read.map(|it| it.plan.reads_at_ms).min();
            let moving = !(self.from_client.0.is_empty() && self.server.output.0.is_empty());
            let next = [server, way, read, self.stack.next_ms(), moving.then_some(self.now_ms)];
            let Some(next) = next.into_iter().flatten().min() else {
                assert!(self.server_has_lost_fin(), "nothing is to come");
                return false;
            };
            self.now_ms = next.max(self.now_ms + u64::from(!moving));
        }
        panic!("it does not end");
    }
}

fn faults() -> impl Strategy<Value = Faults> {
    (any::<u64>(), 0..30_u8, 0..30_u8, 0..300_u64, 0..400_usize).prop_map(
        |(seed, loss_percent, repeat_percent, delay_ms_max, packets)| Faults {
            seed,
            loss_percent,
            repeat_percent,
            delay_ms_max,
            packets,
        },
    )
}

fn plan() -> impl Strategy<Value = Plan> {
    let bytes = || prop_oneof![Just(0), 1..3000_usize, 1..200_000_usize];
    (bytes(), bytes(), 64..70_000_usize, any::<bool>(), prop_oneof![Just(0), 1..5000_u64]).prop_map(
        |(to_server, to_client, server_buffer, server_closes, reads_at_ms)| Plan {
            to_server,
            to_client,
            server_buffer,
            server_closes,
            reads_at_ms,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn all_bytes_arrive_once_in_order_and_both_sides_close(
        faults in faults(), plans in prop::collection::vec(plan(), 1..4)
    ) {
        let mut world = World::new(faults, plans);
        prop_assume!(world.run());
        for connection in &world.connections {
            let Plan { to_client, to_server, server_closes, .. } = connection.plan;
            prop_assert!(connection.client_has == bytes(0..to_client));
            prop_assert!(connection.server_has == bytes(0..to_server));
            let ends = if server_closes { vec![End::Closed] } else { vec![] };
            prop_assert_eq!(&connection.ends, &ends);
        }
    }
}
