//! Rooms whose posts are kept: a channel that waits for its database.

use serde::{Deserialize, Serialize};
use simurgh::{
    Channel, ChannelRoute, Context, JoinContext, Outcome, Payload, Reject, UserSocket, json,
};

mod db;

pub use db::Db;

struct Room {
    id: String,
    db: Db,
}

#[derive(Deserialize)]
struct NewMsg {
    body: String,
}

#[derive(Serialize)]
struct Post {
    id: u64,
    body: String,
}

/// The socket: everybody may connect, and join each room that there is.
pub fn user_socket(db: Db) -> UserSocket {
    UserSocket::new("/socket")
        .channel(ChannelRoute::new("room:*", move |ctx, _payload| Room::join(db.clone(), ctx)))
}

impl Room {
    async fn join(db: Db, ctx: JoinContext) -> Result<Self, Reject> {
        let id = ctx.subtopic().to_owned();
        if !db.has(&id).await? {
            return Err(Reject::new("no such room"));
        }
        Ok(Self { id, db })
    }
}

impl Channel for Room {
    async fn handle_in(
        &mut self,
        ctx: &mut Context,
        event: &str,
        payload: Payload<'static>,
    ) -> Result<Outcome, Reject> {
        match event {
            "new_msg" => {
                let msg: NewMsg = payload.parse()?; // wrong shape: an error reply that says what
                let post = self.db.post(&self.id, msg).await?; // logged; "internal error"
                ctx.broadcast("new_msg", &post);
                Ok(Outcome::ok(json!({"id": post.id})))
            }
            _ => Err(Reject::unknown_event()),
        }
    }
}
