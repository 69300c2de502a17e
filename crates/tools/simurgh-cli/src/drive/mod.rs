//! `simurgh drive`: hundreds of thousands of sockets without a network, on the channels that
//! `serve` would serve.
//!
//! With `--sockets` it measures (`measure`) the time and memory of sockets, channels, messages and
//! broadcasts, before and after idling. With `--script` or at a prompt it executes commands
//! (`command`, `sockets`, `prompt`). It drives the application itself, through `simurgh::driver`.

mod command;
mod interrupt;
mod measure;
mod ping;
mod prompt;
mod resources;
mod sockets;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use simurgh::driver::Driver;
use simurgh::{Builder, ChannelRoute, Endpoint};
use simurgh_text::output::{fail, print};
use simurgh_text::{Choice, duration, whole, word_or};
use simurgh_tune::SHARDS_MAX;

use crate::logging;
use crate::settings::{Channels, Declared, PartialSettings, Serve, Settings, values};
use interrupt::{Failure, Interrupt};

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Flags {
    /// Opens N sockets, measures time and memory, and exits
    #[arg(long, value_name = "N", value_parser = values::count)]
    sockets: Option<usize>,
    #[command(flatten)]
    plan: measure::Plan,
    /// Runs the commands in FILE, one per line, and exits
    #[arg(long, value_name = "FILE", conflicts_with = "sockets")]
    script: Option<PathBuf>,
    /// Settings file, as for serve; its `listen` is ignored
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Also listens on this address, for network clients and /metrics
    #[arg(long, value_name = "ADDRESS", value_parser = values::address)]
    listen: Vec<std::net::SocketAddr>,
    /// Shards [default: one per core, or as in the settings]
    #[arg(long, value_name = "N", value_parser = word_or("auto", whole::<usize>(1, SHARDS_MAX)))]
    shards: Option<Choice<usize>>,
    /// Time after which idle channels hibernate [default: as in the settings; 1s with --sockets]
    #[arg(long, value_name = "TIME", value_parser = word_or("off", duration))]
    hibernate_after: Option<Choice<Duration>>,
}

const AFTER_HELP: &str = "\
Without --sockets and --script, drive reads commands from a prompt or from standard input; `help`\n\
lists them. Without declared channels it runs the built-in chat (rooms:*). It always has\n\
ping_topic, which answers a join with hello and the event ping with pong.\n\
Exit status: 0 success, 1 failure, 2 wrong flags, settings or script, 130 after Ctrl-C.";

/// The time until silent channels hibernate, while measuring.
const MEASURED_HIBERNATE_AFTER: Duration = Duration::from_secs(1);

/// Measures sockets of the application, or executes commands to their end.
pub(crate) fn drive(
    flags: Flags,
    channels: Channels,
    application: impl FnOnce(Builder, Option<Declared>) -> Builder,
) -> ExitCode {
    let script = flags.script.as_deref().map(prompt::Script::read).transpose();
    let ready = script.and_then(|it| Ok((it, Settings::load(serve_flags(&flags), channels)?)));
    let (script, settings) = match ready {
        Ok(ready) => ready,
        Err(refusal) => return refusal.refuse("nothing was started"),
    };
    match run(flags, script, settings, application) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Stopped) => ExitCode::from(INTERRUPTED),
        Err(Failure::Because(why)) => fail(&why),
    }
}

fn run(
    flags: Flags,
    script: Option<prompt::Script>,
    settings: Settings,
    application: impl FnOnce(Builder, Option<Declared>) -> Builder,
) -> Result<(), Failure> {
    // Before any thread is started, since threads inherit the blocked signals.
    let stop = Interrupt::on_signals()
        .map_err(|error| Failure::Because(format!("cannot wait for signals: {error}")))?;
    // It never joins a cluster.
    let Settings { mut config, declared, log, log_format, .. } = settings;
    let _log = logging::start(log, log_format);
    config.listen = flags.listen;
    let declared = declared.map(|declared| Declared {
        user_socket: declared.user_socket.channel(ChannelRoute::on_shard(ping::TOPICS, ping::join)),
        ..declared
    });
    let builder = application(Endpoint::builder().config(config), declared);
    let endpoint = builder.start_local().map_err(|error| Failure::Because(error.to_string()))?;
    endpoint.urls().for_each(|url| print(&format!("listening on {url}\n")));
    let outcome = match flags.sockets {
        Some(sockets) => measure::measure(&endpoint, &flags.plan, sockets, &stop),
        None => {
            let driver = Driver::with(&endpoint, flags.plan.options());
            let measure::Plan { path, params, .. } = flags.plan;
            let server = endpoint.handle();
            let sockets = sockets::Sockets::new(driver, server, path, params, stop.clone());
            prompt::run(sockets, script, &stop)
        }
    };
    endpoint.stop();
    outcome
}

/// The exit status after Ctrl-C.
const INTERRUPTED: u8 = 130;

fn serve_flags(flags: &Flags) -> Serve {
    let measured = flags.sockets.map(|_| Choice::Value(MEASURED_HIBERNATE_AFTER));
    let flags_of_serve = PartialSettings {
        shards: flags.shards,
        hibernate_after: flags.hibernate_after.or(measured),
        ..PartialSettings::default()
    };
    Serve { config: flags.config.clone(), flags: flags_of_serve }
}
