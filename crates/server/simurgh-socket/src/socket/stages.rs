//! The stages of a join, from the connection to the channel's events, and where each is:
//!
//! 1. *Connect*: the connect function admits the socket. With [`UserSocket::tokens`] it verifies
//!    the token, and assigns the claims, the id and the lifetime of the socket.
//! 2. *Route* (core): rate limits, the first pattern that matches the topic, bounds of a socket.
//! 3. *Block*: a user who is blocked for the topic is refused.
//! 4. *Decide*: the route's join function. A declared channel verifies a token of the join's own,
//!    then applies its rules; `TokenPolicy::join` does the same for an application's function.
//! 5. *Interest*: an admitted client waits until broadcasts of other nodes arrive.
//! 6. *Member* (core): history, membership, reply. An own token's deadline starts, then
//!    `after_join` is called.
//! 7. *Events*: `access_token` renews the socket's token; the channel handles the others.
//!
//! [`UserSocket::serve`] builds stages 3, 4, 5 and 7 of every route.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::json;
use simurgh_channel::{Join, Kind};

use super::UserSocket;
use crate::identity;
#[cfg(feature = "token")]
use crate::supabase::Realtime;

/// Done once broadcasts of other nodes on a topic arrive.
pub type InterestFn = Arc<dyn Fn(&str) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

impl UserSocket {
    /// Builds the stages of its joins; nothing may be added afterwards. There is no `interest`
    /// without other nodes.
    #[doc(hidden)]
    pub fn serve(&mut self, interest: Option<&InterestFn>) {
        let Kind::Channels(routes) = &mut self.parts.channels.kind else { return };
        let has_users = self.parts.connect.is_some();
        for (route, own) in routes.iter_mut().zip(&self.own) {
            #[cfg(feature = "token")]
            match (&self.tokens, &own.supabase) {
                // Its channels renew their tokens themselves, by Supabase's rules.
                (Some(policy), Some(settings)) => {
                    route.join = Realtime::new(settings.clone()).judged_by(policy).into_join();
                }
                (Some(policy), None) => route.renew = policy.renewal(),
                (None, _) => {}
            }
            if let Some(interest) = interest.filter(|_| own.waits) {
                let (decide, interest) = (Arc::clone(&route.join), Arc::clone(interest));
                route.join = Arc::new(move |ctx, payload| {
                    let heard = interest(ctx.topic());
                    decide(ctx, payload).after(heard)
                });
            }
            if has_users {
                let decide = Arc::clone(&route.join);
                route.join = Arc::new(move |ctx, payload| match identity::denial(ctx) {
                    Some(reason) => Join::error(json!({ "reason": reason })),
                    None => decide(ctx, payload),
                });
            }
        }
    }
}
