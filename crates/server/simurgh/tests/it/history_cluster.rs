//! Topics with a history on two nodes over the loopback, also while the broker is down.

use std::time::{Duration, Instant};

use crate::support::nodes::Engine;
use crate::support::{Client, WAIT_MAX, handled, metric, metrics, start, until};
use serde_json::{Value, json};
use simurgh::{
    Cluster, Endpoint, Error, Outcome, Payload, ShardContext, UserSocket,
    history::{History, HistoryError, NotKept},
};
use simurgh_loopback::RestartData;

fn room(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    match event {
        "others" => ctx.broadcast_from("said", &payload),
        _ => ctx.broadcast("said", &payload),
    }
    Outcome::ok(json!({}))
}

fn user_socket() -> UserSocket {
    UserSocket::new("/socket").channel(handled("room:*", room).history(History::default()))
}

fn builder() -> simurgh::Builder {
    Endpoint::builder().socket(user_socket()).configure(|config| config.shards = 2)
}

fn nodes(engine: &Engine) -> [Endpoint; 2] {
    ["one", "two"].map(|name| start(engine.node(builder(), name)))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Joins with the opt-in; returns `simurgh:resumed`.
fn resume(client: &mut Client, id: &str, since: Option<&str>) -> Value {
    let (topic, params) = ("room:a", json!({"simurgh": {"id": id, "since": since}}));
    client.send(json!(["1", "1", topic, "phx_join", params]));
    assert_eq!(client.recv()[4]["status"], "ok");
    let resumed = client.recv();
    assert_eq!(resumed[3], "simurgh:resumed");
    resumed[4].clone()
}

#[test]
fn message_that_is_not_stored_is_not_delivered_and_refused() {
    let engine = Engine::start();
    let [one, two] = nodes(&engine);
    let mut ann = Client::v2(&one);
    resume(&mut ann, "ann-is-here", None);
    engine.network.kill();
    let began = Instant::now();
    ann.push("2", "room:a", "all", json!("lost"));
    block_on(async {
        let pubsub = two.pubsub();
        let (refused, forgotten, page) = tokio::join!(
            pubsub.broadcast_kept("room:a", "said", json!(0)),
            pubsub.forget("room:a"),
            pubsub.history("room:a").into_future(),
        );
        assert_eq!(refused, Err(NotKept::NotStored));
        assert_eq!(forgotten, Err(HistoryError::NotConfirmed));
        assert_eq!(page.unwrap().gap.map(|it| it.as_str()), Some("unavailable"));
    });
    let reply = ann.recv();
    assert_eq!(reply[4]["response"]["reason"], "not stored", "{reply}");
    assert!(began.elapsed() < Duration::from_secs(10), "before phoenix.js gives up");
    engine.network.restart(RestartData::Stays);
    ann.push("3", "room:a", "all", json!("kept"));
    let said = ann.recv();
    assert_eq!((&said[3], &said[4]), (&json!("said"), &json!("kept")));
    // The other node's link returns at the same time, and the message comes a little later.
    let until = Instant::now() + WAIT_MAX;
    let page = loop {
        let page = block_on(async { two.pubsub().history("room:a").await.unwrap() });
        if page.gap.is_none() && !page.messages.is_empty() {
            break page;
        }
        assert!(Instant::now() < until, "{page:?}");
    };
    assert_eq!(page.messages.len(), 1);
    assert_eq!(metric(&one, "simurgh_errors_not_stored_total"), 1);
}

#[test]
fn node_with_local_delivery_reports_no_position() {
    let engine = Engine::start();
    let one = start(engine.node_by(builder(), "one", Cluster::local_when_away));
    let two = start(engine.node(builder(), "two"));
    let (mut ann, mut bob) = (Client::v2(&one), Client::v2(&two));
    resume(&mut ann, "ann-is-here", None);
    resume(&mut bob, "bob-is-here", None);
    engine.network.kill();
    let is_away = || metrics(&one).contains("simurgh_cluster_state{state=\"away\"} 1");
    until("the link is known to be away", is_away);
    ann.push("2", "room:a", "all", json!("here"));
    let (said, reply) = (ann.recv(), ann.recv());
    assert_eq!((&said[1], &said[4]), (&Value::Null, &json!("here")), "it has no position");
    assert_eq!(reply[4]["status"], "ok");
    let alone = block_on(async { one.pubsub().broadcast_kept("room:a", "said", json!(0)).await });
    assert_eq!(alone, Err(NotKept::LocalOnly));
    assert_eq!(ann.recv()[4], 0);
    engine.network.restart(RestartData::Stays);
    bob.push("2", "room:a", "all", json!("all again"));
    for client in [&mut ann, &mut bob] {
        let said = client.recv();
        assert_eq!(said[4], "all again");
        assert!(said[1].is_string());
    }
}

#[test]
fn save_file_is_refused_where_the_broker_stores_histories() {
    let engine = Engine::start();
    let file = std::env::temp_dir().join("simurgh-history-cluster");
    let builder = builder().configure(|config| config.history_save = Some(file.clone()));
    let refused = engine.node(builder, "one").start_local().unwrap_err();
    assert!(matches!(refused, Error::HistorySaveInCluster(path) if path == file));
}
