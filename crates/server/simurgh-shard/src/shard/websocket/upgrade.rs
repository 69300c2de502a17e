//! From a connection's first bytes to an open socket, a refusal, or the HTTP side.
//!
//! Requests for a user socket stay here, refusals included, in the order of PROTOCOL §2; every
//! other request goes to the HTTP side with the bytes already read.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use simurgh_core::{
    Callback, CallbackWatch, Compress, Kind, NETWORK, NodeHandle, Phase, SocketState, Wire, guarded,
};
use simurgh_proto::params;
use simurgh_proto::serializer::Serializer;
use simurgh_proto::ws::handshake::{self, Framing, Request};
use simurgh_reactor::Key;
use simurgh_socket::{
    Connect, ConnectInfo, ConnectKind, Transport, UserSocket, identity_of, limits_of,
};

use crate::connection_id::ConnectionId;
use crate::connections::is_reserved;
use crate::proxies::{
    Named, Page, is_trusted, names_client, proxy_line, read_proxy_line, real_peer,
};
use crate::server::Server;
use crate::shard::Passing;
use crate::shard::{Io, Shard};

pub(crate) struct Checked {
    pub(crate) wire: Wire,
    subprotocol: Option<String>,
    pub(crate) token: Option<String>,
}

impl Shard {
    /// Bytes of an upgrade request, which may come in parts.
    pub(crate) fn head(&mut self, io: &mut Io, key: Key, data: &mut [u8]) {
        let Some(conn) = io.conn(key) else { return };
        match conn.passing.take().map(|passing| *passing) {
            Some(Passing::Head { mut bytes, peer }) => {
                bytes.extend_from_slice(data);
                // A head ends with a line; parsing it for each byte of a trickle would take
                // quadratic time.
                let longest = self.server.config.http.head_bytes_max;
                let may_be_whole = data.contains(&b'\n') || bytes.len() > longest;
                if may_be_whole {
                    return self.head_bytes(io, key, &mut bytes, peer);
                }
                conn.passing = Some(Box::new(Passing::Head { bytes, peer }));
            }
            _ => self.head_bytes(io, key, data, None),
        }
    }

    fn head_bytes(&mut self, io: &mut Io, key: Key, data: &mut [u8], peer: Option<Named>) {
        let (skip, peer) = match self.proxy_header(io, key, data, peer) {
            Ok(Some(found)) => found,
            Ok(None) => return keep_head(io, key, data.to_vec(), peer),
            Err(()) => return self.refuse(io, key, 400, ""),
        };
        let Some((_, request_bytes)) = data.split_at_mut_checked(skip) else { return };
        let limits = self.server.config.http.head_limits();
        let (request, length) = match Request::parse(request_bytes, &limits) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return keep_head(io, key, request_bytes.to_vec(), peer),
            Err(error) => return self.refuse(io, key, error.status(), ""),
        };
        if io.conn_ref(key).is_some_and(|conn| conn.socket.phase() == Phase::Full) {
            return self.refuse_full(io, key);
        }
        let server = Arc::clone(&self.server);
        let wants_upgrade = request.wants_websocket();
        let user_socket =
            server.user_sockets.iter().position(|it| it.takes(request.path(), wants_upgrade));
        let Some((index, user_socket)) =
            user_socket.and_then(|at| Some((at, server.user_sockets.get(at)?)))
        else {
            let is_reserved = is_reserved(request.path());
            let is_secure = io.is_secure(key);
            // The HTTP side cannot ask the system for the address of a client with TLS.
            let own = || io.peer_addr(key).ok().map(|client| Named { client, is_secure });
            return match peer.or_else(|| is_secure.then(own).flatten()) {
                None => self.hand_off(io, key, request_bytes, is_reserved),
                Some(named) => {
                    let line = proxy_line(Named { is_secure, ..named });
                    let named = [line.as_bytes(), request_bytes].concat();
                    self.hand_off(io, key, &named, is_reserved)
                }
            };
        };
        if server.connection_limit.is_full() {
            return self.refuse_full(io, key);
        }
        // As the HTTP side requires of every request (`http/gate.rs`); and an upgrade has no
        // body.
        match request.framing() {
            Ok(Framing::Length(0)) => {}
            Ok(_) => return self.refuse(io, key, 400, ""),
            Err(error) => return self.refuse(io, key, error.status(), &format!("{error}\n")),
        }
        let answer = self.upgrade(io, key, &server, user_socket, &request, peer);
        if user_socket.parts().connect.is_some() {
            // It may have checked a token's signature.
            io.is_late();
        }
        drop(request);
        let rest = request_bytes.get_mut(length..).unwrap_or_default();
        match answer {
            Err(Refused { status, headers, body }) => {
                self.refuse_with(io, key, status, headers, &body);
            }
            Ok(Accepted { wire, response, connect }) => {
                if let Some(conn) = io.conn(key) {
                    conn.socket.lead_to(index as u8, wire);
                }
                self.answer_connect(io, key, response, connect, rest);
            }
        }
    }

    /// The length of the PROXY header in front of a handshake, whose client is noted for the
    /// request. `None` while it is incomplete, or if it is wrong.
    pub(crate) fn header_before_tls(&self, io: &mut Io, key: Key, data: &[u8]) -> Option<usize> {
        let known = match io.conn_ref(key)?.passing.as_deref() {
            Some(Passing::Head { peer, .. }) => *peer,
            _ => None,
        };
        match self.proxy_header(io, key, data, known) {
            Ok(header) => {
                let (length, peer) = header?;
                if peer.is_some() {
                    keep_head(io, key, Vec::new(), peer);
                }
                Some(length)
            }
            Err(()) => {
                tracing::debug!(peer = ?io.peer_addr(key).ok(), "no PROXY header of a proxy");
                io.abort(key);
                None
            }
        }
    }

    /// The PROXY protocol header that a trusted proxy sends first: how many bytes to skip, and the
    /// client's address. `None` while it is incomplete.
    #[allow(clippy::type_complexity, reason = "local to this file, read in one place")]
    fn proxy_header(
        &self,
        io: &Io,
        key: Key,
        data: &[u8],
        known: Option<Named>,
    ) -> Result<Option<(usize, Option<Named>)>, ()> {
        let config = &self.server.config;
        // On a Unix socket the client is a proxy on this machine, or our own HTTP side.
        let is_local = data.starts_with(b"PROXY ") && io.is_unix(key);
        if is_local && let Some((named, rest)) = read_proxy_line(data) {
            return Ok(Some((data.len() - rest.len(), Some(named))));
        }
        if (!config.proxy_protocol && !is_local) || known.is_some() {
            return Ok(Some((0, known)));
        }
        let Ok(peer) = io.peer_addr(key) else { return Err(()) };
        if !is_local && !is_trusted(&config.trusted_proxies, peer.ip()) {
            return Ok(Some((0, None)));
        }
        use ppp::{HeaderResult, PartialResult as _};
        let parsed = HeaderResult::parse(data);
        if parsed.is_incomplete() {
            return Ok(None);
        }
        let (bytes, client): (usize, Option<(IpAddr, u16)>) = match parsed {
            HeaderResult::V1(Ok(header)) => {
                let client = match header.addresses {
                    ppp::v1::Addresses::Tcp4(it) => {
                        Some((it.source_address.into(), it.source_port))
                    }
                    ppp::v1::Addresses::Tcp6(it) => {
                        Some((it.source_address.into(), it.source_port))
                    }
                    ppp::v1::Addresses::Unknown => None,
                };
                (header.header.len(), client)
            }
            HeaderResult::V2(Ok(header)) => {
                let client = match header.addresses {
                    ppp::v2::Addresses::IPv4(it) => {
                        Some((it.source_address.into(), it.source_port))
                    }
                    ppp::v2::Addresses::IPv6(it) => {
                        Some((it.source_address.into(), it.source_port))
                    }
                    ppp::v2::Addresses::Unspecified | ppp::v2::Addresses::Unix(_) => None,
                };
                (header.len(), client)
            }
            HeaderResult::V1(Err(_)) | HeaderResult::V2(Err(_)) => return Err(()),
        };
        let client = client.map_or(peer, SocketAddr::from);
        Ok(Some((bytes, Some(Named { client, is_secure: false }))))
    }

    /// All checks of an upgrade, in the order of PROTOCOL §2.
    fn upgrade(
        &mut self,
        io: &Io,
        key: Key,
        server: &Server,
        user_socket: &UserSocket,
        request: &Request<'_>,
        named: Option<Named>,
    ) -> Result<Accepted, Refused> {
        let peer = named.map(|named| named.client);
        let address = || client(server, request, io, key, peer).ip();
        self.note_source(key, || {
            let is_named = peer.is_some() || proxy_is_trusted(server, request, io, key);
            is_named.then(address)
        });
        self.count_address(key, address).map_err(|why| Refused::of(429, why))?;
        let is_secure = io.is_secure(key) || named.is_some_and(|named| named.is_secure);
        let checked = check(server, user_socket, request, io, key, is_secure)
            .map_err(|(status, why)| Refused::of(status, why))?;
        let connect = match &user_socket.parts().connect {
            None => Connect::ok(),
            Some(_) => {
                let params = params::decode(request.query()).map_err(|_| Refused::of(400, ""))?;
                let (token, transport) = (checked.token.as_deref(), Transport::WebSocket);
                let peer = client(server, request, io, key, peer);
                let connection = self.connection_name(user_socket, key);
                let info =
                    user_socket.connect_info(request, params, token, peer, transport, connection);
                self.ask_connect(user_socket, &info).ok_or_else(|| Refused::of(500, ""))?
            }
        };
        if let ConnectKind::Refuse { status, body } = connect.0 {
            return Err(Refused { body, ..Refused::of(status, "") });
        }
        let upgrade = handshake::check_upgrade(request).map_err(|error| {
            let (status, headers) = (error.status(), error.headers());
            Refused { status, headers, body: format!("{error}\n") }
        })?;
        let mut response = Vec::with_capacity(160);
        let is_on = user_socket.parts().channels.compress != Compress::Off;
        let deflate = is_on.then(|| handshake::accept_deflate(request)).flatten();
        let wire = deflate.map_or(checked.wire, |_| checked.wire.with_deflate());
        handshake::write_accept(&upgrade, checked.subprotocol.as_deref(), deflate, &mut response);
        Ok(Accepted { wire, response, connect })
    }

    /// The name of a connection for the questions about it, if there are any.
    pub(crate) fn connection_name(&self, user_socket: &UserSocket, key: Key) -> Option<String> {
        let (node, shard) = (self.server.id, self.index);
        user_socket.parts().asks().then(|| ConnectionId { node, shard, key }.to_string())
    }

    /// Calls the application's connect; `None` if it panicked.
    pub(crate) fn ask_connect(
        &mut self,
        user_socket: &UserSocket,
        info: &ConnectInfo<'_>,
    ) -> Option<Connect> {
        let Some(connect) = &user_socket.parts().connect else { return Some(Connect::ok()) };
        let shard = usize::from(self.index);
        self.server.enter_callback(shard, Callback::Connect);
        let decided = guarded(|| connect(info));
        self.server.leave_callback(shard);
        if decided.is_none() {
            self.metrics.errors_callback_panic.add(1);
        }
        decided
    }

    /// Refuses a client whose user is blocked, or whose token is revoked, whoever let it in.
    pub(crate) fn without_denied(&self, connect: Connect) -> Connect {
        let ConnectKind::Ok(state) = &connect.0 else { return connect };
        let identity = identity_of(state);
        match identity.and_then(|identity| self.server.denial(&identity, None)) {
            Some(reason) => {
                self.drop_guarded(connect);
                Connect::refuse_with(403, format!("{reason}\n"))
            }
            None => connect,
        }
    }

    pub(crate) fn answer_connect(
        &mut self,
        io: &mut Io,
        key: Key,
        response: Vec<u8>,
        connect: Connect,
        rest: &mut [u8],
    ) {
        match self.without_denied(connect).0 {
            ConnectKind::Ok(state) => {
                if let Err(why) = self.count_user(key, state.id.as_deref()) {
                    self.drop_guarded(state);
                    return self.refuse(io, key, 429, why);
                }
                if !self.server.connection_limit.take() {
                    self.drop_guarded(state);
                    return self.refuse_full(io, key);
                }
                self.open(io, key, &response, state);
                if !rest.is_empty() {
                    self.frames(io, key, rest);
                }
            }
            ConnectKind::Refuse { status, body } => self.refuse(io, key, status, &body),
            ConnectKind::Later(work) => {
                self.await_connect(io, key, response, None, rest, work);
            }
        }
    }

    pub(crate) fn open(&mut self, io: &mut Io, key: Key, response: &[u8], state: SocketState) {
        io.send(key, response);
        if let Some(name) = limits_of(&state) {
            self.limit(io, key, name);
        }
        let (core, mut out) = self.parts(io);
        core.opened(&mut out, key, state);
    }

    /// Gives a socket the limits of this name.
    pub(crate) fn limit(&mut self, io: &mut Io, key: Key, name: &str) {
        if let Some(copy) = self.user_socket(io, key).and_then(|own| own.limited_copy(name))
            && let Some(conn) = io.conn(key)
        {
            let wire = conn.socket.wire();
            conn.socket.lead_to(copy, wire);
        }
    }

    pub(super) fn refuse_full(&mut self, io: &mut Io, key: Key) {
        self.metrics.refused_full.add(1);
        self.refuse_for_now(io, key);
    }

    /// Refuses with 503; the client may try again soon.
    pub(crate) fn refuse_for_now(&mut self, io: &mut Io, key: Key) {
        self.refuse(io, key, 503, "");
    }

    pub(crate) fn refuse(&mut self, io: &mut Io, key: Key, status: u16, body: &str) {
        self.refuse_with(io, key, status, &[], body);
    }

    pub(super) fn refuse_with(
        &mut self,
        io: &mut Io,
        key: Key,
        status: u16,
        headers: &[(&str, &str)],
        body: &str,
    ) {
        self.metrics.upgrades_refused.add(1);
        let headers = if status == 503 { &[("retry-after", "1")] } else { headers };
        let ticks = io.now().tick;
        let Some(conn) = io.conn(key) else { return };
        conn.socket.enter(Phase::Ending, ticks);
        conn.passing = None;
        if conn.socket.transport != NETWORK {
            // A driven socket has no HTTP; its driver gets the close event.
            return io.close(key);
        }
        io.send_with(key, |out| handshake::write_refusal(status, headers, body, out));
        io.shutdown_write(key);
    }
}

struct Accepted {
    wire: Wire,
    response: Vec<u8>,
    connect: Connect,
}

struct Refused {
    status: u16,
    headers: &'static [(&'static str, &'static str)],
    body: String,
}

impl Refused {
    fn of(status: u16, body: &str) -> Self {
        Self { status, headers: &[], body: body.to_owned() }
    }
}

pub(super) fn keep_head(io: &mut Io, key: Key, bytes: Vec<u8>, peer: Option<Named>) {
    if let Some(conn) = io.conn(key) {
        conn.passing = Some(Box::new(Passing::Head { bytes, peer }));
    }
}

/// Checks origin, auth token, subprotocols and serializer, before the application's connect. The
/// error is an HTTP status and a body.
pub(crate) fn check(
    server: &Server,
    user_socket: &UserSocket,
    request: &Request<'_>,
    io: &Io,
    key: Key,
    is_secure: bool,
) -> Result<Checked, (u16, &'static str)> {
    const REFUSED: (u16, &str) = (403, "");
    let vsn = params::vsn(request.query());
    let policy = user_socket.parts().check_origin.as_ref().unwrap_or(&server.origin_policy);
    let page = Page {
        origin: request.header("origin"),
        host: request.header("host"),
        proxy: proxy_is_trusted(server, request, io, key)
            .then(|| request.named("x-forwarded-proto").collect()),
        is_secure,
    };
    page.check(&server.config, policy).map_err(|why| (403, why))?;
    let configured: Vec<&str> =
        user_socket.parts().subprotocols.iter().map(String::as_str).collect();
    let negotiated = handshake::negotiate(request, &configured, user_socket.parts().auth_token)
        .map_err(|_| REFUSED)?;
    let wire = match &user_socket.parts().channels.kind {
        Kind::Plain { .. } => Wire::Plain,
        Kind::Channels(_) => {
            let vsn = vsn.map_err(|_| REFUSED)?;
            Wire::from(Serializer::for_vsn(vsn.as_deref()).map_err(|_| REFUSED)?)
        }
    };
    let subprotocol = negotiated.subprotocol.map(str::to_owned);
    Ok(Checked { wire, subprotocol, token: negotiated.token })
}

/// Whether a trusted proxy passes the request on.
fn proxy_is_trusted(server: &Server, request: &Request<'_>, io: &Io, key: Key) -> bool {
    let config = &server.config;
    names_client(config, |name| request.header(name).is_some())
        && io.peer_addr(key).is_ok_and(|hop| is_trusted(&config.trusted_proxies, hop.ip()))
}

/// The client's address: from a PROXY header, else from trusted proxies' `x-forwarded-for`.
pub(crate) fn client(
    server: &Server,
    request: &Request<'_>,
    io: &Io,
    key: Key,
    peer: Option<SocketAddr>,
) -> SocketAddr {
    let hop = || io.peer_addr(key).unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
    let peer = peer.unwrap_or_else(hop);
    let lines: Vec<_> = request.named("x-forwarded-for").collect();
    real_peer(peer, &lines, &server.config.trusted_proxies)
}
