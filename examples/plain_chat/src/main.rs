//! A chat over bare WebSockets, without a protocol: each message is sent unchanged to all users.
//!
//! The same chat listens on `/chat` and, beside the page, on `/`.

mod history;
mod modes;

use std::error::Error;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use simurgh::axum::response::Html;
use simurgh::axum::{Router, routing::get};
use simurgh::{Endpoint, Join, Payload, ShardContext, Signals, UserSocket};

use modes::{Counts, Echo, Everybody, History, Silent};

/// Both user sockets join this topic, so that they are one chat.
const TOPIC: &str = "chat";

/// A chat over bare WebSockets.
#[derive(Parser)]
struct Args {
    /// Address to listen on.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:3000")]
    listen: String,
    /// How a message is answered.
    #[arg(long, value_enum, default_value_t = Mode::Broadcast)]
    mode: Mode,
    /// Short for `--mode silent`.
    #[arg(long, conflicts_with = "mode")]
    silent: bool,
    /// Messages kept in mode history.
    #[arg(long, value_name = "N", default_value_t = 100)]
    history_max: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// It goes to everybody, the sender included.
    Broadcast,
    /// It goes back to its sender.
    Echo,
    /// Everybody gets the list of the last messages.
    History,
    /// It is counted and goes nowhere; the counts are printed at the end.
    Silent,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let signals = Signals::block()?;
    let mode = if args.silent { Mode::Silent } else { args.mode };
    let counts = Arc::new(Counts::default());
    let (keeper, kept) = history::keeper();
    let join = {
        let counts = Arc::clone(&counts);
        move |_: &mut ShardContext<'_>, _: Payload<'_>| match mode {
            Mode::Broadcast => Join::ok(Everybody),
            Mode::Echo => Join::ok(Echo),
            Mode::History => Join::ok(History(keeper.clone())),
            Mode::Silent => Join::ok(Silent(Arc::clone(&counts))),
        }
    };
    // The protocol has no heartbeats, so a listening client may be silent for hours.
    let chat = |path| UserSocket::plain(path, TOPIC, join.clone()).idle_timeout(None);

    let endpoint = Endpoint::builder()
        .socket(chat("/chat"))
        .socket(chat("/"))
        .http(Router::new().route("/", get(Html(include_str!("../static/index.html")))))
        .listen(&args.listen)
        .start()?;
    if mode == Mode::History {
        history::keep(kept, args.history_max, TOPIC, endpoint.pubsub());
    }
    for address in endpoint.addresses() {
        println!("listening on http://{address}");
    }
    endpoint.serve(signals)?;
    if mode == Mode::Silent {
        println!("{counts}");
    }
    Ok(())
}
