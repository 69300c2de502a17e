//! Requests to the server from a separate thread, so that keys never wait for a response.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use simurgh::observe::view::{ClusterOverview, ConnectionRow, List, Members, Overview, TopicRow};

use super::client::{Client, Problem, encoded};

const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Quit,
    Members(String),
    Connection(String),
    Disconnect(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    Nothing,
    Topics(String),
    Connections(String),
    Cluster,
}

#[derive(Debug)]
pub(super) enum Update {
    Overview(Box<Overview>),
    Topics(List<TopicRow>),
    Connections(List<ConnectionRow>),
    Cluster(Box<ClusterOverview>),
    Members(Members),
    Connection(Box<ConnectionRow>),
    Done(String),
    Failed(String),
    Unreachable(String),
}

/// The thread ends when this is dropped and its last request is answered.
pub(super) struct Fetcher {
    requests: Sender<(Action, Wanted)>,
    updates: Receiver<Update>,
}

impl Fetcher {
    pub(super) fn start(client: Client) -> io::Result<Self> {
        let (requests, asked) = channel();
        let (answers, updates) = channel();
        std::thread::Builder::new().name("simurgh-observe".into()).spawn(move || {
            // Fails if the receiver of the answers was dropped.
            let _ = fetch(&client, &asked, |update| answers.send(update).map_err(drop));
        })?;
        Ok(Self { requests, updates })
    }

    pub(super) fn updates(&self) -> impl Iterator<Item = Update> {
        self.updates.try_iter()
    }

    /// Executes an action, and requests this list from now on.
    pub(super) fn act(&self, action: Action, wanted: Wanted) {
        // The thread lives as long as this value.
        let _ = self.requests.send((action, wanted));
    }
}

fn fetch(
    client: &Client,
    requests: &Receiver<(Action, Wanted)>,
    answer: impl Fn(Update) -> Result<(), ()>,
) -> Result<(), ()> {
    let mut wanted = Wanted::Nothing;
    let mut due = Instant::now();
    let mut was_unreachable = false;
    loop {
        match requests.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok((action, now)) => {
                if now != wanted {
                    wanted = now;
                    list(client, &wanted).map_or(Ok(()), &answer)?;
                }
                act(client, action).map_or(Ok(()), &answer)?;
            }
            Err(RecvTimeoutError::Timeout) => {
                due = Instant::now() + POLL_INTERVAL;
                let overview = client.overview(was_unreachable);
                was_unreachable = overview.is_err();
                answer(match overview {
                    Ok(overview) => Update::Overview(Box::new(overview)),
                    Err(problem) => Update::Unreachable(problem.to_string()),
                })?;
                if !was_unreachable {
                    list(client, &wanted).map_or(Ok(()), &answer)?;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

fn list(client: &Client, wanted: &Wanted) -> Option<Update> {
    let list = match wanted {
        Wanted::Nothing => return None,
        Wanted::Topics(query) => client.get(&format!("topics?{query}")).map(Update::Topics),
        Wanted::Connections(query) => {
            client.get(&format!("connections?{query}")).map(Update::Connections)
        }
        Wanted::Cluster => client.get("cluster").map(Update::Cluster),
    };
    Some(list.unwrap_or_else(|problem| match problem {
        Problem::Unreachable(_) => Update::Unreachable(problem.to_string()),
        Problem::Failed(_) => Update::Failed(problem.to_string()),
    }))
}

fn act(client: &Client, action: Action) -> Option<Update> {
    let done = match action {
        Action::Members(topic) => {
            client.get(&format!("members?topic={}", encoded(&topic))).map(Update::Members)
        }
        Action::Connection(id) => {
            client.get(&format!("connection?id={}", encoded(&id))).map(Update::Connection)
        }
        Action::Disconnect(id) => {
            client.disconnect(&id).map(|()| Update::Done(format!("{id} is disconnected")))
        }
        Action::None | Action::Quit => return None,
    };
    Some(done.unwrap_or_else(|problem| Update::Failed(problem.to_string())))
}
