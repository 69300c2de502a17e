//! Hooks against applications that speak HTTP/1.1 by hand, over real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod answers;
mod caching;
mod connections;
mod documents;
mod notices;
mod protection;
mod reload;
mod requests;
mod support;
mod tls;
