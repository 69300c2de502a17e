//! The commands of `simurgh`, for your own application as well.
//!
//! A server with flags, `simurgh.toml`, logs, signals and drain is three lines around your user
//! sockets:
//!
//! ```no_run
//! use simurgh::{ChannelRoute, Join, JoinContext, Payload, Reject, UserSocket};
//!
//! async fn join(_: JoinContext, _: Payload<'static>) -> Result<Join, Reject> {
//!     Err(Reject::new("closed today"))
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     simurgh_cli::run(|server| {
//!         server.socket(UserSocket::new("/socket").channel(ChannelRoute::new("rooms:*", join)))
//!     })
//! }
//! ```
//!
//! Flags and file are read into the same optional values, described in `settings::keys`; `settings`
//! merges and checks them before anything is started (`serve`). Standard output has one line for
//! each address, `listening on http://…`, once the server is ready; everything else is printed to
//! standard error.
//!
//! `drive` runs the same application in this process, without a network. `load` puts servers under
//! load and measures, `observe` shows a running one, `publish`, `push`, `kick`, `disconnect`,
//! `reload`, `topics` and `online` use its API, `token` makes and inspects tokens. The
//! commands `road` and `tune` are separate crates.
//!
//! Exit status: 0 after a drain, 1 if the server cannot start, 2 if flags or file are wrong, 128
//! plus the signal's number if a second signal ended it at once. `load`, `token` and `tune` have
//! more.

mod api;
mod config;
mod drive;
mod flags;
mod hook;
mod load;
mod log_queue;
mod logging;
mod notify;
mod observe;
mod packaging;
mod reload;
mod serve;
mod settings;
mod signals;
mod token;
mod version;

use std::process::ExitCode;

use clap::FromArgMatches;
use simurgh::{Builder, declared};
use simurgh_text::output::{WRONG_SETTINGS, complain, fail, print};

use flags::{Cli, Command};
use settings::{Channels, Declared, Settings};
use version::Program;

/// Runs your own application with the commands of `simurgh`: `serve`, `config`, `drive`, `load`,
/// `observe` and so on.
///
/// `application` gets a server with all settings of flags and file, and adds user sockets and
/// pages; its own settings win. Keys about declared channels are refused. The program is named
/// after its file; [`run_as`] gives it a name and a version.
pub fn run(application: impl FnOnce(Builder) -> Builder) -> ExitCode {
    run_with(&Program::unnamed(), Channels::InRust, |builder, _| application(builder))
}

/// Like [`run`], with a name and a version, which `--version` prints before those of Simurgh.
/// Completions and man pages use the name.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     simurgh_cli::run_as("shop", env!("CARGO_PKG_VERSION"), |server| server)
/// }
/// ```
pub fn run_as(name: &str, version: &str, application: impl FnOnce(Builder) -> Builder) -> ExitCode {
    let program = Program::named(name, version);
    run_with(&program, Channels::InRust, |builder, _| application(builder))
}

/// Runs the channels that `simurgh.toml` declares, or else the built-in chat. The page at `/` is
/// the chat, one of the configured files, or a list of the channels.
pub fn run_declared() -> ExitCode {
    run_with(&Program::simurgh(), Channels::Declared, with_declared)
}

fn with_declared(builder: Builder, declared: Option<Declared>) -> Builder {
    let Some(Declared { user_socket, page, front }) = declared else { return builder };
    let builder = match declared::hosted(&user_socket) {
        Some(hosted) => builder.socket(hosted),
        None => builder,
    };
    let builder = builder.socket(user_socket).http(page);
    match front {
        Some(details) => builder.front_page(details),
        None => builder,
    }
}

fn run_with(
    program: &Program,
    channels: Channels,
    application: impl FnOnce(Builder, Option<Declared>) -> Builder,
) -> ExitCode {
    avoid_huge_pages();
    simurgh_reactor::use_built_in_name_services();
    let command = flags::command(channels, program);
    let matches = command.clone().try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version end here too, with status 0. A closed pipe is ignored.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(WRONG_SETTINGS));
        }
    };
    match cli.command {
        Command::Serve(serve) => match Settings::load(serve.settings.clone(), channels) {
            Ok(settings) => {
                let how = reload::How { serve: serve.settings, application: with_declared };
                let how = (channels == Channels::Declared).then_some(how);
                let served = serve::serve(settings, how, serve.take_over, application);
                finish(served.map(|()| String::new()))
            }
            Err(refusal) => refusal.refuse("nothing was started"),
        },
        Command::Restart(flags) => match Settings::load(*flags, channels) {
            Ok(settings) => finish(serve::restart(settings)),
            Err(refusal) => refusal.refuse("the running server goes on as before"),
        },
        #[cfg(feature = "nats")]
        Command::Config(config::Flags {
            nats_permissions: Some(prefix),
            nats_streams,
            nats_notices,
            ..
        }) => {
            let text = settings::cluster::permissions(&prefix, nats_streams, nats_notices);
            finish(text.map_err(|error| format!("--nats-permissions: {error}")))
        }
        Command::Config(config::Flags { check: Some(path), .. }) => {
            match Settings::check(&path, channels) {
                Ok(warnings) => {
                    warnings.iter().for_each(|warning| complain(&format!("warning: {warning}")));
                    finish(Ok(format!("{}: ok\n", path.display())))
                }
                Err(refusal) => refusal.refuse("see `simurgh config` for every key"),
            }
        }
        Command::Config(config::Flags { check: None, .. }) => finish(Ok(config::text(channels))),
        Command::Load(flags) => load::load(*flags),
        Command::Drive(flags) => drive::drive(*flags, channels, application),
        Command::Observe(flags) => observe::observe(&flags),
        Command::Publish(flags) => api::publish(&flags),
        Command::Push(flags) => api::push(&flags),
        Command::Kick(flags) => api::kick(&flags),
        Command::Disconnect(flags) => api::disconnect(&flags),
        Command::Block(flags) => api::block(&flags),
        Command::Unblock(flags) => api::unblock(&flags),
        Command::Revoke(flags) => api::revoke(&flags),
        Command::Reload(flags) => api::reload(&flags),
        Command::Topics(flags) => api::topics(&flags),
        Command::Online(flags) => api::online(&flags),
        Command::Stays(flags) => api::stays(&flags),
        Command::Notices(flags) => api::notices(&flags),
        Command::Road(flags) => simurgh_road::road(&flags),
        Command::Token(flags) => token::token(&flags),
        Command::Hook(flags) => hook::hook(&flags),
        Command::Tune(flags) => simurgh_tune::tune(&flags),
        Command::Completions(flags) => finish(Ok(packaging::completions(&flags, command))),
        Command::ManPages(flags) => {
            finish(packaging::man_pages(&flags, command).map(|()| String::new()))
        }
    }
}

fn finish(done: Result<String, String>) -> ExitCode {
    match done {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(why) => fail(&why),
    }
}

/// Makes the kernel use small pages. Zeroing a huge page makes a turn of 5 ms where the hypervisor
/// has to find it first (measured), and half of it then stays unused. Called first, since it does
/// not affect memory that exists already.
fn avoid_huge_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "huge pages stay on");
    }
}

/// The README's program must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
