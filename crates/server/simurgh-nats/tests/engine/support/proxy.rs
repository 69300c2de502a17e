//! A proxy between one node and its broker: passes everything or nothing, or ends the link.
#![allow(clippy::disallowed_types, reason = "a test has no reactor")]

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::engine::HOST;
use super::runtime;

#[derive(Clone, Copy, Default)]
struct State {
    is_cut: bool,
    /// How often links were ended.
    resets: u64,
}

pub(crate) struct Proxy {
    pub(crate) port: u16,
    state: watch::Sender<State>,
}

impl Proxy {
    pub(crate) fn to(port: u16) -> Self {
        let listener = runtime().block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let (state, seen) = watch::channel(State::default());
        runtime().spawn(accept(listener, port, seen));
        Self { port: own_port, state }
    }

    pub(crate) fn cut(&self) {
        self.state.send_modify(|it| it.is_cut = true);
    }

    pub(crate) fn mend(&self) {
        self.state.send_modify(|it| it.is_cut = false);
    }

    pub(crate) fn reset(&self) {
        self.state.send_modify(|it| it.resets += 1);
    }
}

async fn accept(listener: TcpListener, port: u16, mut state: watch::Receiver<State>) {
    loop {
        let client = tokio::select! {
            accepted = listener.accept() => accepted.unwrap().0,
            gone = async { while state.changed().await.is_ok() {} } => return gone,
        };
        tokio::spawn(link(client, port, state.clone()));
    }
}

async fn link(client: TcpStream, port: u16, mut state: watch::Receiver<State>) {
    let resets = state.borrow().resets;
    let ended = state.clone();
    let both = async {
        if state.wait_for(|it| !it.is_cut).await.is_err() {
            return;
        }
        let Ok(server) = TcpStream::connect((HOST, port)).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::select! {
            () = pump(from_client, to_server, state.clone()) => {}
            () = pump(from_server, to_client, state.clone()) => {}
        }
    };
    let mut ended = ended;
    tokio::select! {
        () = both => {}
        _ = ended.wait_for(|it| it.resets != resets) => {}
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<State>) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let was_cut = state.borrow().is_cut;
        if state.wait_for(|it| !it.is_cut).await.is_err() {
            break;
        }
        // A peer that closed its link meanwhile has dropped the rest.
        let has_ended = !matches!(from.as_ref().take_error(), Ok(None));
        if was_cut && has_ended || to.write_all(&bytes[..count]).await.is_err() {
            break;
        }
    }
    // While it is cut, the end of one direction is held back too.
    let _ = state.wait_for(|it| !it.is_cut).await;
}
