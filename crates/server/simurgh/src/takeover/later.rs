//! The process that takes over.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};

use simurgh_core::HandedOverNumbers;
use simurgh_reactor as reactor;
use simurgh_shard::config::Config;
use simurgh_shard::server::Server;
use simurgh_shard::takeover::{ProcessLink, ToOther};

use super::wire::{self, Head};
use super::{Inherited, STEP_TIMEOUT, Stream, control_address, limit_steps, link, peer};
use crate::blocks;
use crate::error::Error;

/// The running process that this one takes over from.
pub(crate) struct Earlier {
    stream: Stream,
    pub(crate) secret: Box<str>,
    is_node: bool,
}

/// The link, and messages for it that were posted before it was served.
pub(crate) struct Linked {
    stream: Stream,
    link: Arc<ProcessLink>,
    waiting: mpsc::Receiver<ToOther>,
}

impl Earlier {
    /// Asks the process that listens on the first address for its sockets; `None` if there is none.
    ///
    /// # Errors
    /// It refuses, or belongs to another user.
    pub(crate) fn find(config: &Config, is_node: bool) -> Result<Option<(Self, Inherited)>, Error> {
        let addresses: Vec<_> = config.addresses().collect();
        let address = control_address(&addresses, config);
        let found = address.and_then(|address| UnixStream::connect_addr(&address));
        let stream = match found {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Err(error) => return Err(Error::TakeOver(error)),
        };
        Self::ask(stream, is_node).map(Some).map_err(Error::TakeOver)
    }

    fn ask(stream: Stream, is_node: bool) -> io::Result<(Self, Inherited)> {
        if !peer(&stream)?.is_same_user {
            return Err(io::Error::other("the running server belongs to another user"));
        }
        limit_steps(&stream)?;
        wire::write(&stream, &Head::TakeOver { version: wire::VERSION, is_node }, &[])?;
        match wire::read(&stream)?.0 {
            Head::Offer { sockets, secret } => {
                let inherited = Inherited(reactor::receive_listening(&stream, sockets)?);
                Ok((Self { stream, secret: secret.into(), is_node }, inherited))
            }
            Head::Refused(why) => Err(io::Error::other(why)),
            other => Err(wire::unexpected(&other)),
        }
    }

    /// Receives histories, blocks and cached answers, before the shards start.
    pub(crate) fn receive_state(self, server: &Arc<Server>) -> Result<Linked, Error> {
        self.receive(server).map_err(Error::TakeOver)
    }

    fn receive(self, server: &Arc<Server>) -> io::Result<Linked> {
        wire::write(&self.stream, &Head::State, &[])?;
        let mut histories = Vec::new();
        let numbers = loop {
            let (head, body) = wire::read(&self.stream)?;
            match head {
                Head::Blocks => drop(blocks::restore(server, &body)),
                #[cfg(feature = "hooks")]
                Head::Grants => crate::hooked::restore(server, &body),
                #[cfg(not(feature = "hooks"))]
                Head::Grants => {}
                Head::History => histories.extend_from_slice(&body),
                Head::Numbers { epoch, last, forgotten } => {
                    break HandedOverNumbers { epoch, last, forgotten };
                }
                other => return Err(wire::unexpected(&other)),
            }
        };
        let (link, waiting) = ProcessLink::new(false);
        if !self.is_node {
            let shards = server.mailboxes.len();
            let taken = server.saved.take_over(&histories, numbers, shards);
            taken.map_err(|error| io::Error::other(error.to_string()))?;
            server.takeover.set_link(Some(Arc::clone(&link)));
        }
        Ok(Linked { stream: self.stream, link, waiting })
    }
}

impl Linked {
    /// This process listens: the earlier one drains. Returns once it does.
    pub(crate) fn ready(self, server: &Arc<Server>) -> Result<(), Error> {
        self.begin(server).map_err(Error::TakeOver)
    }

    fn begin(self, server: &Arc<Server>) -> io::Result<()> {
        let Self { stream, link, waiting } = self;
        stream.set_read_timeout(None)?;
        let (drains, told) = mpsc::sync_channel(1);
        link.post(ToOther::Ready);
        link::start_writing(stream.try_clone()?, &link, waiting)?;
        let of = Arc::clone(server);
        link::start("simurgh-earlier", move || {
            let ended = link::read_all(&stream, &of, &link, |head| {
                let Head::Draining = head else { return Some(head) };
                let _ = drains.try_send(());
                None
            });
            of.takeover.set_link(None);
            link.end();
            tracing::info!(reason = %ended, "the earlier process has ended");
        })?;
        let is_draining = told.recv_timeout(STEP_TIMEOUT).is_ok();
        is_draining.then_some(()).ok_or_else(|| io::Error::other("the running server has ended"))
    }
}
