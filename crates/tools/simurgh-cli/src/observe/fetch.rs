//! Asks the server in a thread of its own, so that keys never wait for an answer.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use simurgh::observe::view::{ClusterOverview, ConnectionRow, List, Members, Overview, TopicRow};

use super::app::{Action, Wanted};
use super::client::{Client, Problem};

/// How often figures are asked for.
const EVERY: Duration = Duration::from_secs(1);

/// What came.
#[derive(Debug)]
pub(super) enum News {
    Overview(Box<Overview>),
    Topics(List<TopicRow>),
    Connections(List<ConnectionRow>),
    Cluster(Box<ClusterOverview>),
    Members(Members),
    Connection(Box<ConnectionRow>),
    /// It was done.
    Done(String),
    /// It was not done.
    Failed(String),
    /// The server does not answer.
    Lost(String),
}

enum Order {
    Look(Wanted),
    Act(Action),
}

/// The thread that asks. It ends when this is dropped and its last answer has come.
pub(super) struct Fetcher {
    orders: Sender<Order>,
    news: Receiver<News>,
}

impl Fetcher {
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(client: Client) -> io::Result<Self> {
        let (orders, ordered) = channel();
        let (told, news) = channel();
        std::thread::Builder::new()
            .name("simurgh-observe".into())
            .spawn(move || fetch(&client, &ordered, &told))?;
        Ok(Self { orders, news })
    }

    /// What has come.
    pub(super) fn news(&self) -> impl Iterator<Item = News> {
        self.news.try_iter()
    }

    /// Does what a key says, and asks for what is shown from now on.
    pub(super) fn act(&self, action: Action, wanted: Wanted) {
        // The thread lives as long as this.
        let _ = self.orders.send(Order::Look(wanted));
        if !matches!(action, Action::None | Action::Quit) {
            let _ = self.orders.send(Order::Act(action));
        }
    }
}

fn fetch(client: &Client, orders: &Receiver<Order>, told: &Sender<News>) {
    let mut wanted = Wanted::Nothing;
    let mut due = Instant::now();
    // After a time without the server the minutes before are asked for again.
    let mut was_lost = false;
    loop {
        let changed = match orders.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(Order::Look(now)) => {
                let changed = now != wanted;
                wanted = now;
                changed
            }
            Ok(Order::Act(action)) => {
                if told.send(act(client, action)).is_err() {
                    return;
                }
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {
                due = Instant::now() + EVERY;
                let answer = client.overview(was_lost);
                was_lost = answer.is_err();
                let news = match answer {
                    Ok(overview) => News::Overview(Box::new(overview)),
                    Err(problem) => News::Lost(problem.to_string()),
                };
                if told.send(news).is_err() {
                    return;
                }
                !was_lost
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if changed
            && let Some(news) = list(client, &wanted)
            && told.send(news).is_err()
        {
            return;
        }
    }
}

fn list(client: &Client, wanted: &Wanted) -> Option<News> {
    let answer = match wanted {
        Wanted::Nothing => return None,
        Wanted::Topics(query) => client.topics(query).map(News::Topics),
        Wanted::Connections(query) => client.connections(query).map(News::Connections),
        Wanted::Cluster => client.cluster().map(|it| News::Cluster(Box::new(it))),
    };
    Some(answer.unwrap_or_else(|problem| match problem {
        Problem::Unreachable(_) => News::Lost(problem.to_string()),
        _ => News::Failed(problem.to_string()),
    }))
}

fn act(client: &Client, action: Action) -> News {
    let answer = match action {
        Action::Members(topic) => client.members(&topic).map(News::Members),
        Action::Connection(id) => client.connection(&id).map(|row| News::Connection(Box::new(row))),
        Action::Disconnect(id) => {
            client.disconnect(&id).map(|()| News::Done(format!("{id} is disconnected")))
        }
        Action::None | Action::Quit => Ok(News::Done(String::new())),
    };
    answer.unwrap_or_else(|problem| News::Failed(problem.to_string()))
}
