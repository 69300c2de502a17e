//! Presence as applications and back ends use it: from an asynchronous channel, as a list outside
//! of channels, by HTTP, and during a drain. `e2e/wire` tests what members receive.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::raw::ask;
use crate::support::{Client, WAIT_MAX, metric, serving, start};
use serde_json::{Value, json};
use simurgh::{
    Builder, Channel, ChannelRoute, Context, Endpoint, Outcome, Payload, PresenceListError, Reject,
};

const TOKEN: &str = "presence-token";

struct Room {
    user: String,
}

impl Channel for Room {
    async fn after_join(&mut self, ctx: &mut Context) -> Result<(), Reject> {
        tokio::time::sleep(Duration::from_millis(5)).await;
        ctx.presence().track(&self.user, json!({"device": 1}))?;
        ctx.presence().push_state();
        Ok(())
    }

    async fn handle_in(
        &mut self,
        ctx: &mut Context,
        _: &str,
        payload: Payload<'static>,
    ) -> Result<Outcome, Reject> {
        tokio::time::sleep(Duration::from_millis(5)).await;
        ctx.presence().update(&self.user, payload)?;
        Ok(Outcome::ok(Payload::EMPTY_OBJECT))
    }
}

fn builder() -> Builder {
    serving(ChannelRoute::new("room:*", |_, params| async move {
        let params: Value = params.parse()?;
        Ok(Room { user: params["user"].as_str().unwrap().to_owned() })
    }))
    .configure(|config| {
        config.shards = 4;
        config.api_token = Some(TOKEN.to_owned());
        config.presence.interval = Duration::from_millis(20);
    })
}

/// The payload of the next message with this event.
fn next(client: &mut Client, event: &str) -> Value {
    loop {
        let mut message = client.recv();
        if message[3] == event {
            return message[4].take();
        }
    }
}

/// A member that has received its own entry; returns its `phx_ref`, too.
fn member(endpoint: &Endpoint, topic: &str, user: &str) -> (Client, Value) {
    let mut client = Client::v2(endpoint);
    client.send(json!(["1", "1", topic, "phx_join", {"user": user}]));
    let mut state = next(&mut client, "presence_state");
    let metas = state[user]["metas"].as_array_mut().unwrap();
    (client, metas.last_mut().unwrap()["phx_ref"].take())
}

/// The runtime has neither timers nor I/O, like a small one of a program.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn asynchronous_channel_tracks_updates_and_leaves() {
    let endpoint = start(builder());
    let mut witness = member(&endpoint, "room:a", "witness").0;
    let (mut ann, old) = member(&endpoint, "room:a", "ann");
    while next(&mut witness, "presence_diff")["joins"]["ann"].is_null() {}
    ann.push("2", "room:a", "update", json!({"device": 2}));
    let diff = next(&mut witness, "presence_diff");
    let meta = &diff["joins"]["ann"]["metas"][0];
    assert_eq!((&meta["device"], &meta["phx_ref_prev"]), (&json!(2), &old), "{diff}");
    ann.push("3", "room:a", "update", json!([1]));
    let refused = std::iter::repeat_with(|| next(&mut ann, "phx_reply"));
    let refused = refused.take(3).find(|it| it["status"] == "error").unwrap();
    let reason = &refused["response"]["reason"];
    assert_eq!(reason, "internal error", "the client receives no error of the application");
    drop(ann);
    assert!(next(&mut witness, "presence_diff")["leaves"]["ann"].is_object());
}

#[test]
fn drain_closes_members_and_ends_in_time_with_pending_diffs() {
    let endpoint = start(builder().configure(|it| it.drain_time = Duration::from_millis(300)));
    let members: Vec<_> =
        (0..40).map(|n| member(&endpoint, "room:drain", &format!("user{n}")).0).collect();
    let (presence, since) = (endpoint.presence(), Instant::now());
    let closed: Vec<_> =
        members.into_iter().map(|mut it| std::thread::spawn(move || it.recv_close())).collect();
    endpoint.drain().unwrap();
    assert!(since.elapsed() < WAIT_MAX, "{:?}", since.elapsed());
    assert!(closed.into_iter().all(|it| it.join().unwrap() == 1012));
    let error = block_on(presence.list::<Value>("room:drain")).unwrap_err();
    assert_eq!(error.to_string(), "the server has stopped or is stopping");
    assert!(matches!(error, PresenceListError::Ended), "{error:?}");
    assert!(matches!(block_on(presence.count("room:1")), Err(PresenceListError::Ended)));
}

fn get(endpoint: &Endpoint, query: &str, token: Option<&str>) -> (u16, Value) {
    let bearer = token.map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
    let line = format!("GET /api/presence{query}");
    let answer = ask(endpoint.addresses()[0], &line, &bearer, "");
    (answer.status, answer.json())
}

/// The code maps the end of the server to 503 (http/api.rs): over a socket, HTTP ends with the
/// shards.
#[test]
fn back_ends_list_members_over_http_with_a_token() {
    let endpoint = start(builder());
    let (_desk, desk_ref) = member(&endpoint, "room:é &", "ann");
    let (_phone, phone_ref) = member(&endpoint, "room:é &", "ann");
    let (status, body) = get(&endpoint, "?topic=room:%C3%A9%20%26", Some(TOKEN));
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["topic"], "room:é &");
    assert_eq!((&body["entries"], &body["keys"]), (&json!(2), &json!(1)));
    let refs = |metas: &[Value]| metas.iter().map(|it| it["phx_ref"].clone()).collect::<Vec<_>>();
    let metas = refs(body["presences"]["ann"]["metas"].as_array().unwrap());
    assert!(metas.len() == 2 && metas.contains(&desk_ref) && metas.contains(&phone_ref), "{body}");
    let listed = block_on(endpoint.presence().list::<Value>("room:é &")).unwrap();
    assert_eq!(refs(&listed["ann"]), metas, "as code outside of channels sees it");
    let wrong = block_on(endpoint.presence().list::<u32>("room:é &"));
    assert!(matches!(wrong, Err(PresenceListError::OtherMeta(_))), "{wrong:?}");
    let (status, body) = get(&endpoint, "?topic=nobody", Some(TOKEN));
    assert_eq!(status, 200);
    assert_eq!(body, json!({"topic": "nobody", "entries": 0, "keys": 0, "presences": {}}));
    for query in ["", "?", "?topic=a&topic=b", "?topic=a&x=1", "?other=a"] {
        let (status, body) = get(&endpoint, query, Some(TOKEN));
        assert_eq!(status, 400, "{query}");
        let error = "expected ?topic=NAME, and nothing else";
        assert_eq!(body, json!({"error": error, "code": "invalid"}));
    }
    for token in [None, Some("wrong"), Some("")] {
        assert_eq!(get(&endpoint, "?topic=a", token).0, 401);
        assert_eq!(get(&endpoint, "", token).0, 401, "without a token no other error is shown");
    }
}

/// Its tokio runtime is not the server's: shards must not wake it, because they lack the
/// descriptors of the main thread's table.
#[test]
fn list_is_awaited_on_a_runtime_of_the_application() {
    let endpoint = start(builder());
    let _members: Vec<_> =
        (0..8).map(|n| member(&endpoint, "room:rt", &format!("user{n}"))).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let presence = endpoint.presence();
            scope.spawn(move || {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    for _ in 0..200 {
                        assert_eq!(presence.list::<Value>("room:rt").await.unwrap().len(), 8);
                        assert_eq!(presence.count("room:rt").await.unwrap(), 8);
                    }
                });
            });
        }
    });
    // The server's sockets still work.
    assert!(TcpStream::connect(endpoint.addresses()[0]).is_ok());
    assert_eq!(metric(&endpoint, "simurgh_presences"), 8);
}
