//! The page's live feed: the overview each second, and a list whenever it is updated.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, RawQuery};
use axum::http::{StatusCode, Uri};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::Observer;
use super::access::Refusal;
use super::api::{ConnectionsQuery, NO_CLUSTER, TopicsQuery, WithObserver};
use super::lists::{self, Wanted};
use super::nodes;

/// Events that may wait for a slow reader; no more are created until it has read.
const WAITING_MAX: usize = 4;

#[derive(Debug, Default, Deserialize)]
struct FeedQuery {
    /// `topics` or `connections`, with the parameters of that list, or `cluster`.
    #[serde(default)]
    list: String,
}

#[derive(Debug, PartialEq)]
enum Extra {
    Nothing,
    List(Wanted),
    Cluster,
}

/// `GET api/feed`: events `overview`, the first with the history, and `topics`, `connections` or
/// `cluster`, until the reader has gone.
pub(super) async fn feed(observer: WithObserver, query: RawQuery) -> Result<Response, Refusal> {
    let wanted = wanted(query.0.as_deref().unwrap_or_default())?;
    if wanted == Extra::Cluster && observer.server.cluster.is_none() {
        return Err(NO_CLUSTER);
    }
    let Ok(place) = Arc::clone(&observer.feeds).try_acquire_owned() else {
        let error = "too many observers are connected to this server: close one";
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error));
    };
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    tokio::spawn(send_overviews(Arc::clone(&observer.0), sender.clone()));
    match wanted {
        Extra::Nothing => {}
        Extra::List(wanted) => {
            tokio::spawn(send_lists(Arc::clone(&observer.0), wanted, sender));
        }
        Extra::Cluster => {
            tokio::spawn(send_cluster(Arc::clone(&observer.0), sender));
        }
    }
    let begun = (receiver, place, Arc::clone(&observer.server.http_connections));
    let events = stream::unfold(begun, |(mut receiver, place, http_connections)| async move {
        let event: Event = receiver.recv().await?;
        // A stopping server does not wait for viewers.
        let goes_on = !http_connections.is_closing();
        goes_on.then_some((Ok::<_, Infallible>(event), (receiver, place, http_connections)))
    });
    Ok(Sse::new(events).into_response())
}

/// The parts of a query besides the overview. The list decides which other parameters are valid.
fn wanted(query: &str) -> Result<Extra, Refusal> {
    let (list, rest): (Vec<&str>, Vec<&str>) =
        query.split('&').partition(|pair| pair.starts_with("list="));
    let uri = |query: &str| Uri::builder().path_and_query(format!("/?{query}")).build();
    let list_uri = uri(&list.join("&")).map_err(|error| Refusal::mistake(error.to_string()))?;
    let rest_uri = uri(&rest.join("&")).map_err(|error| Refusal::mistake(error.to_string()))?;
    let Query(FeedQuery { list }) = Query::try_from_uri(&list_uri)?;
    match list.as_str() {
        "" => Ok(Extra::Nothing),
        "cluster" if rest.is_empty() => Ok(Extra::Cluster),
        "cluster" => Err(Refusal::mistake("list=cluster takes no other parameters")),
        "topics" => {
            let Query(query) = Query::<TopicsQuery>::try_from_uri(&rest_uri)?;
            Ok(Extra::List(query.wanted()))
        }
        "connections" => {
            let Query(query) = Query::<ConnectionsQuery>::try_from_uri(&rest_uri)?;
            query.wanted().map(Extra::List)
        }
        _ => Err(Refusal::mistake("list: expected topics, connections or cluster")),
    }
}

/// Does not keep the server alive.
async fn send_overviews(observer: Arc<Observer>, sender: mpsc::Sender<Event>) {
    let mut latest = observer.latest.subscribe();
    let mut overview = (**latest.borrow_and_update()).clone();
    overview.history = observer.points();
    drop(observer);
    if sender.send(event("overview", &overview)).await.is_err() {
        return;
    }
    while latest.changed().await.is_ok() {
        let overview = Arc::clone(&latest.borrow_and_update());
        if sender.send(event("overview", &*overview)).await.is_err() {
            return;
        }
    }
}

async fn send_lists(observer: Arc<Observer>, wanted: Wanted, sender: mpsc::Sender<Event>) {
    let name = match wanted {
        Wanted::Topics { .. } => "topics",
        Wanted::Connections { .. } => "connections",
    };
    let mut sent: Option<Arc<lists::Listed>> = None;
    while !sender.is_closed() {
        let listed = lists::list(&observer, &wanted).await;
        // Another viewer's request may have made it; the same list is not sent twice.
        if !sent.as_ref().is_some_and(|sent| Arc::ptr_eq(sent, &listed)) {
            if sender.send(event(name, &*listed)).await.is_err() {
                return;
            }
            sent = Some(Arc::clone(&listed));
        }
        wait(listed.next_in(), &sender).await;
    }
}

async fn send_cluster(observer: Arc<Observer>, sender: mpsc::Sender<Event>) {
    while !sender.is_closed() {
        let Some(overview) = nodes::cluster(&observer).await else { return };
        if sender.send(event("cluster", &*overview)).await.is_err() {
            return;
        }
        wait(nodes::KEPT, &sender).await;
    }
}

async fn wait(time: Duration, sender: &mpsc::Sender<Event>) {
    let _ = tokio::time::timeout(time, sender.closed()).await;
}

/// Our own types can always be serialized.
fn event(name: &str, value: &impl Serialize) -> Event {
    Event::default().event(name).data(serde_json::to_string(value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_at_most_one_list_with_its_own_parameters() {
        assert_eq!(wanted("").unwrap(), Extra::Nothing);
        assert_eq!(wanted("list=cluster").unwrap(), Extra::Cluster);
        let topics = wanted("list=topics&by=deliveries&search=a%20b&most=7").unwrap();
        let Extra::List(Wanted::Topics { search, most, .. }) = topics else { panic!("{topics:?}") };
        assert_eq!((&*search, most), ("a b", 7));
        let connections = wanted("list=connections").unwrap();
        assert!(matches!(connections, Extra::List(Wanted::Connections { .. })));
        for query in [
            "list=shards",
            "list=topics&by=age",
            "list=connections&peer=x",
            "by=members&list=topics&x=1",
            "list=cluster&most=7",
        ] {
            assert_eq!(wanted(query).unwrap_err().into_response().status(), 400, "{query}");
        }
    }
}
