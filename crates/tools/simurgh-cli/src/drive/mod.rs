//! `simurgh drive`: sockets without a network, by the hundred thousand, on the channels that
//! `serve` would serve.
//!
//! With `--sockets` it measures: what a socket and its channels cost in time and memory, before and
//! after they idle, messages, and broadcasts to all (`measure`). With `--script` or at a prompt it
//! does what is typed (`command`, `fleet`, `prompt`). Everything goes through `simurgh::driver`, so
//! what is driven is the application itself.

mod command;
mod fleet;
mod measure;
mod ping;
mod prompt;
mod resources;
mod stop;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use simurgh::driver::{Driver, Options};
use simurgh::{Builder, Endpoint, Serializer};
use simurgh_text::output::{fail, print};
use simurgh_text::{Choice, duration, whole, word_or};
use simurgh_tune::{CONNECTIONS_MAX, SHARDS_MAX};

use crate::logging;
use crate::settings::{Channels, Declared, PartialSettings, Serve, Settings, values};
use stop::Stop;

/// What can be typed after `simurgh drive`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Flags {
    /// Creates so many sockets, measures what they cost, and ends
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1, CONNECTIONS_MAX))]
    sockets: Option<usize>,
    /// Channels that each of them joins
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole::<u16>(1, 65_535))]
    channels: u16,
    #[arg(long, value_name = "TOPIC", default_value = "ping_topic", help = TOPIC_HELP,
          long_help = TOPIC_LONG_HELP)]
    topic: String,
    /// Path of the user socket
    #[arg(long, value_name = "PATH", default_value = "/socket")]
    path: String,
    /// Params of each connection, a JSON object
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = values::json)]
    params: serde_json::Value,
    /// Payload of each join
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = values::json)]
    payload: serde_json::Value,
    /// Event that each socket pushes, to measure messages
    #[arg(long, value_name = "EVENT", default_value = "ping")]
    event: String,
    /// Broadcasts to all that are measured
    #[arg(long, value_name = "N", default_value = "5", value_parser = whole::<usize>(1, CONNECTIONS_MAX))]
    broadcasts: usize,
    /// What messages pass on their way: nothing, or a serializer and WebSocket frames
    #[arg(long, value_enum, default_value = "none")]
    serializer: Way,
    /// Does what FILE says, a command on each line, and ends
    #[arg(long, value_name = "FILE", conflicts_with = "sockets")]
    script: Option<PathBuf>,
    /// Settings, as for serve; nothing is listened on unless --listen says so
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to listen on as well, for clients, /metrics and the like
    #[arg(long, value_name = "ADDRESS", value_parser = values::address)]
    listen: Vec<std::net::SocketAddr>,
    /// Event loops [default: one per core, or as the settings say]
    #[arg(long, value_name = "N", value_parser = word_or("auto", whole::<usize>(1, SHARDS_MAX)))]
    shards: Option<Choice<usize>>,
    /// Time after which channels that are silent hibernate [default: as the settings say; 1s when
    /// measuring]
    #[arg(long, value_name = "TIME", value_parser = word_or("off", duration))]
    hibernate_after: Option<Choice<Duration>>,
}

/// `{n}` in a help text. Clap would take it for a line break, so the letter is marked: bold on a
/// terminal, and nothing more elsewhere.
macro_rules! number {
    () => {
        "`{\u{1b}[1mn\u{1b}[0m}`"
    };
}

const TOPIC_HELP: &str =
    concat!("Topic to join; ", number!(), " in it is the number of the channel, from 1");
const TOPIC_LONG_HELP: &str = concat!(
    "Topic to join; ",
    number!(),
    " in it is the number of the channel, from 1\n\nWithout ",
    number!(),
    ", `:2`, `:3` and so on are appended for all channels but the first."
);

/// What messages pass on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    /// Values, as they are
    None,
    /// Serializer V1
    V1,
    /// Serializer V2
    V2,
}

impl Way {
    fn serializer(self) -> Option<Serializer> {
        match self {
            Self::None => None,
            Self::V1 => Some(Serializer::V1),
            Self::V2 => Some(Serializer::V2),
        }
    }
}

const AFTER_HELP: &str = "\
Without --sockets and --script it reads commands: at a prompt with history and completion, or\n\
from standard input. `help` names them. Where no channels are declared there is the built-in chat\n\
(rooms:*), and ping_topic: a join is answered with hello, the event ping with the event pong.\n\
Exit status: 0, 1 when something failed, 2 when flags, settings or script are wrong, 130 after\n\
Ctrl-C.";

/// How long channels that are silent stay awake while it measures.
const MEASURED_HIBERNATE_AFTER: Duration = Duration::from_secs(1);

/// Drives sockets of the application, until they have been measured or nothing more is asked.
pub(crate) fn drive(
    flags: Flags,
    channels: Channels,
    application: impl FnOnce(Builder, Option<Declared>) -> Builder,
) -> ExitCode {
    let script = match flags.script.as_deref().map(prompt::Script::read).transpose() {
        Ok(script) => script,
        Err(refusal) => return refusal.refuse("nothing was started"),
    };
    let settings = match Settings::load(serve_flags(&flags), channels) {
        Ok(settings) => settings,
        Err(refusal) => return refusal.refuse("nothing was started"),
    };
    // First of all: threads inherit what is blocked.
    let stop = match Stop::on_signals() {
        Ok(stop) => stop,
        Err(error) => return fail(&format!("cannot wait for signals: {error}")),
    };
    // What is driven is measured by itself, without other nodes.
    let Settings { mut config, declared, cluster: _, log, log_format } = settings;
    let _log = logging::start(log, log_format);
    config.listen.clone_from(&flags.listen);
    let declared = declared.map(|declared| Declared {
        user_socket: declared.user_socket.channel(ping::TOPICS, ping::join),
        ..declared
    });
    let builder = application(Endpoint::builder().config(config), declared);
    let endpoint = match builder.start_local() {
        Ok(endpoint) => endpoint,
        Err(error) => return fail(&error.to_string()),
    };
    for address in endpoint.addresses() {
        print(&format!("listening on http://{address}\n"));
    }
    let outcome = match flags.sockets {
        Some(sockets) => measure::measure(&endpoint, &plan(&flags, sockets), &stop),
        None => {
            let mut options = Options::default();
            options.serializer = flags.serializer.serializer();
            let driver = Driver::with(&endpoint, options);
            let fleet = fleet::Fleet::new(driver, endpoint.handle(), flags.path, flags.params);
            prompt::run(fleet, script, &stop)
        }
    };
    endpoint.stop();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Stopped) => ExitCode::from(INTERRUPTED),
        Err(Failure::Because(why)) => fail(&why),
    }
}

/// Status of a process that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Why nothing more is done.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    /// Ctrl-C.
    Stopped,
    /// For this reason.
    Because(String),
}

impl From<simurgh::driver::Error> for Failure {
    fn from(error: simurgh::driver::Error) -> Self {
        Self::Because(error.to_string())
    }
}

fn serve_flags(flags: &Flags) -> Serve {
    let measured = flags.sockets.map(|_| Choice::Value(MEASURED_HIBERNATE_AFTER));
    let flags_of_serve = PartialSettings {
        shards: flags.shards,
        hibernate_after: flags.hibernate_after.or(measured),
        ..PartialSettings::default()
    };
    Serve { config: flags.config.clone(), flags: flags_of_serve }
}

fn plan(flags: &Flags, sockets: usize) -> measure::Plan {
    measure::Plan {
        sockets,
        topics: topics(&flags.topic, flags.channels),
        path: flags.path.clone(),
        params: flags.params.clone(),
        payload: flags.payload.clone(),
        event: flags.event.clone(),
        broadcasts: flags.broadcasts,
        way: flags.serializer,
    }
}

/// The topics of one socket.
fn topics(pattern: &str, channels: u16) -> Vec<String> {
    let name = |n: u16| match pattern.contains("{n}") {
        true => pattern.replace("{n}", &n.to_string()),
        false if n == 1 => pattern.to_owned(),
        false => format!("{pattern}:{n}"),
    };
    (1..=channels).map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_channel_of_a_socket_has_its_topic() {
        assert_eq!(topics("ping_topic", 1), ["ping_topic"]);
        assert_eq!(topics("ping_topic", 3), ["ping_topic", "ping_topic:2", "ping_topic:3"]);
        assert_eq!(topics("rooms:{n}", 2), ["rooms:1", "rooms:2"]);
    }
}
