//! Clients that resume, and kept topics, as applications see them.

use std::collections::BTreeMap;

use crate::support::{Client, start};
use serde_json::{Value, json};
use simurgh::{
    Builder, Channel, ChannelRoute, Context, Endpoint, Join, JoinContext, Outcome, Payload, Reject,
    ShardChannel, ShardContext, UserSocket,
    history::{History, HistoryCursor, HistoryError, Resume, Since},
};

struct Room;

fn seen(resume: Option<&Resume>) -> Value {
    let Some(Resume { id, since, seen, partial, key, .. }) = resume else { return Value::Null };
    let since = match since {
        Since::Now => json!("now"),
        Since::After(position) => json!(position.to_string()),
        // What a client sends never asks for the newest.
        Since::Newest(_) | Since::Unknown => json!("unknown"),
    };
    let (seen, key) = (seen.map(|it| it.to_string()), key.clone());
    json!({"id": id, "since": since, "seen": seen, "partial": partial, "key": key})
}

impl ShardChannel for Room {
    fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
        ctx.push("after_join", json!(seen(ctx.resume())));
    }

    fn handle_in(&mut self, ctx: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
        Outcome::ok(json!(seen(ctx.resume())))
    }
}

struct AsyncRoom;

impl Channel for AsyncRoom {
    async fn handle_in(
        &mut self,
        _: &mut Context,
        _: &str,
        _: Payload<'static>,
    ) -> Result<Outcome, Reject> {
        Ok(Outcome::NoReply)
    }
}

async fn join(ctx: JoinContext, _: Payload<'static>) -> Result<(AsyncRoom, Value), Reject> {
    // When the join is decided, the message has long been dropped.
    tokio::task::yield_now().await;
    Ok((AsyncRoom, json!({"seen": seen(ctx.resume())})))
}

fn builder() -> Builder {
    let see = |ctx: &mut ShardContext<'_>, _: Payload<'_>| {
        Join::ok(Room).reply(json!({"seen": seen(ctx.resume())}))
    };
    let user_socket = UserSocket::new("/socket")
        .channel(ChannelRoute::on_shard("plain:*", see))
        .channel(ChannelRoute::on_shard("kept:*", see).history(History::default()))
        .channel(ChannelRoute::new("async:*", join).history(History::default()));
    Endpoint::builder().socket(user_socket).configure(|config| config.shards = 3)
}

#[test]
fn join_function_sees_the_position_of_its_client() {
    let server = start(builder());
    let said = [
        (json!({}), Value::Null),
        (json!({"simurg": {}}), Value::Null),
        (
            json!({"simurgh": {}}),
            json!({"id": null, "since": "now", "seen": null, "partial": true, "key": null}),
        ),
        (
            json!({"user": 1, "simurgh": {
                "id": "a-client", "since": "k7ku80.60-3", "seen": "k7ku80.61",
                "partial": false, "key": "k7ku80.1~x"}}),
            json!({
                "id": "a-client", "since": "k7ku80.60-3", "seen": "k7ku80.61",
                "partial": false, "key": "k7ku80.1~x"}),
        ),
        (
            json!({"simurgh": {"since": "yesterday"}}),
            json!({"id": null, "since": "unknown", "seen": null, "partial": true, "key": null}),
        ),
    ];
    // Several topics, so that home shards are the client's own and others.
    for n in 0..6 {
        for (params, expected) in &said {
            for (kind, expected) in
                [("plain", &Value::Null), ("kept", expected), ("async", expected)]
            {
                let mut client = Client::v2(&server);
                let topic = format!("{kind}:{n}");
                client.send(json!(["1", "1", topic, "phx_join", params]));
                let reply = client.recv();
                assert_eq!(reply[4]["status"], "ok", "{reply}");
                assert_eq!(&reply[4]["response"]["seen"], expected, "{topic} {params}");
            }
        }
    }
}

#[test]
fn only_join_functions_see_the_resume_position() {
    let server = start(builder());
    let mut client = Client::v2(&server);
    client.send(json!(["1", "1", "kept:a", "phx_join", {"simurgh": {"id": "a-client"}}]));
    assert_eq!(client.recv()[4]["response"]["seen"]["id"], "a-client");
    assert_eq!(client.recv()[3], "simurgh:resumed");
    let after_join = client.recv();
    assert_eq!((&after_join[3], &after_join[4]), (&json!("after_join"), &Value::Null));
    client.push("2", "kept:a", "what", json!({"simurgh": {"id": "a-client"}}));
    assert_eq!(client.recv()[4], json!({"status": "ok", "response": null}));
}

#[tokio::test]
async fn topics_are_listed_page_by_page_as_over_http() {
    let server = start(builder());
    let pubsub = server.pubsub();
    let empty = pubsub.history_topics().await.unwrap();
    assert_eq!((empty.topics.len(), empty.next), (0, None));
    let mut expected = BTreeMap::new();
    for n in 0..25 {
        let topic = format!("kept:{n}");
        for _ in 0..n % 3 {
            pubsub.broadcast_kept(&topic, "said", json!({})).await.unwrap();
        }
        let last = pubsub.broadcast_kept(&topic, "said", json!({})).await.unwrap();
        expected.insert(topic, (n % 3 + 1, last));
    }
    for limit in [1, 7, 25, 5_000] {
        let mut listed = BTreeMap::new();
        let mut query = pubsub.history_topics().limit(limit);
        let mut pages = 0;
        loop {
            let page = query.clone().await.unwrap();
            assert!(page.topics.len() <= limit);
            for it in page.topics {
                assert!(it.bytes >= 96 * it.messages as u64);
                let known = listed.insert(it.name.into(), (it.messages, it.position));
                assert_eq!(known, None, "twice");
            }
            pages += 1;
            let Some(next) = page.next else { break };
            // The cursor as a page of the HTTP API contains it.
            query = query.after(HistoryCursor::parse(&next.to_string()).unwrap());
        }
        assert_eq!(listed, expected);
        assert!(pages >= 25 / limit, "{pages} of {limit}");
    }
    let nothing = pubsub.history_topics().limit(0).await.unwrap();
    assert_eq!(nothing.topics.len(), 1, "one at least");
    server.stop();
    assert_eq!(pubsub.history_topics().await.unwrap_err(), HistoryError::Ended);
}
