//! The conformance application: the tests check a server against PROTOCOL §14 with it, and a reader
//! finds every feature of the library in one place.
//!
//! | where | what |
//! |---|---|
//! | `/socket` | the whole application, see [`rooms`], [`presence`], [`test_channel`] |
//! | `/short` | the same with an idle timeout and a poll window one can wait for |
//! | `/echo` | a plain WebSocket that sends back what it gets, see [`echo`] |

mod echo;
mod presence;
mod rooms;
mod test_channel;
mod visitor;

use std::time::Duration;

use clap::Parser;
use simurgh::cluster::{ClusterConfig, Prefix};
use simurgh::supabase::{HOSTED_PATH, Settings};
use simurgh::{ChannelRoute, CheckOrigin, Cluster, Compress, Endpoint, LongPoll, UserSocket};
use simurgh_nats::{NatsAdapter, StreamsConfig};

/// The application that the rows of docs/PROTOCOL.md are tested against.
#[derive(Parser)]
struct Args {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4001")]
    listen: String,
    /// Shards, each one thread; one a core if not given.
    #[arg(long, value_name = "N")]
    shards: Option<usize>,
    /// Bearer token of the HTTP API.
    #[arg(long, value_name = "TOKEN")]
    api_token: Option<String>,
    /// Sockets that one user may have at once.
    #[arg(long, value_name = "N")]
    max_connections_per_user: Option<u32>,
    /// Engine of the cluster that this is a node of, such as nats://127.0.0.1:4222.
    #[arg(long, value_name = "URL", requires = "name")]
    nats: Option<simurgh_nats::Server>,
    /// The prefix of the cluster's subjects.
    #[arg(long, value_name = "TEXT", default_value = "conformance")]
    prefix: String,
    /// The nodes' common secret, at least 64 characters: any of them then serves each long poll.
    #[arg(long, value_name = "TEXT")]
    secret: Option<String>,
    /// The name of this node.
    #[arg(long, value_name = "TEXT", default_value = "")]
    name: String,
}

/// The time to connect to the cluster's engine, before which the server does not listen.
const ENGINE_WITHIN: Duration = Duration::from_secs(20);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let origins = CheckOrigin::list(["//example.com", "//localhost", "//127.0.0.1"])?;
    let mut builder = Endpoint::builder();
    if let Some(engine) = args.nats {
        builder = builder.cluster(cluster(engine, &args.prefix, args.name)?);
    }
    builder
        .socket(socket("/socket", &origins))
        .socket(
            socket("/short", &origins)
                .idle_timeout(Some(Duration::from_secs(2)))
                .longpoll(LongPoll::new().window(Duration::from_secs(1))),
        )
        .socket(echo::user_socket())
        .socket(realtime())
        .configure(|config| {
            config.outbound_bytes_max = echo::OUTBOUND_BYTES_MAX;
            config.shards = args.shards.unwrap_or(config.shards);
            config.api_token = args.api_token;
            config.secret_key_base = args.secret;
            config.max_connections_per_user = args.max_connections_per_user;
        })
        .listen(&args.listen)
        .on_ready(|endpoint| {
            for address in endpoint.addresses() {
                println!("listening on http://{address}");
            }
        })
        .run()?;
    Ok(())
}

fn cluster(
    engine: simurgh_nats::Server,
    prefix: &str,
    name: String,
) -> Result<Cluster, Box<dyn std::error::Error>> {
    let prefix = Prefix::new(prefix)?;
    let mut nats = simurgh_nats::Config::new(vec![engine], prefix.clone(), name.clone());
    let cluster = Cluster::new(ClusterConfig::new(prefix, name), |setup| {
        nats.streams = setup.history.map(|it| StreamsConfig::of(it.count, it.age));
        NatsAdapter::new(nats, setup.runtime.clone())
    });
    Ok(cluster.required(ENGINE_WITHIN))
}

/// Channels as in Supabase, some with small limits.
fn realtime() -> UserSocket {
    let mut small = Settings::default();
    (small.payload_bytes_max, small.events_per_second) = (Some(1_000), Some(5));
    UserSocket::new(HOSTED_PATH)
        .longpoll(LongPoll::new())
        .channel(ChannelRoute::supabase("realtime:small-*", small).wait_for_interest())
        .channel(ChannelRoute::supabase("realtime:*", Settings::default()).wait_for_interest())
}

/// In a cluster, a new member gets all that any node broadcasts from its join on.
fn socket(path: &str, origins: &CheckOrigin) -> UserSocket {
    // Its messages are never compressed.
    let exact = ChannelRoute::on_shard("exact", test_channel::join).compress(Compress::Off);
    UserSocket::new(path)
        .compress(Compress::Text)
        .auth_token(true)
        .longpoll(LongPoll::new())
        .check_origin(origins.clone())
        .connect_on_shard(visitor::connect)
        .channel(ChannelRoute::on_shard("rooms:*", rooms::join).wait_for_interest())
        .channel(ChannelRoute::on_shard("presence:*", presence::join).wait_for_interest())
        .channel(ChannelRoute::on_shard("test:*", test_channel::join).wait_for_interest())
        .channel(exact.wait_for_interest())
}
