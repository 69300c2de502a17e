//! The commands of `simurgh`, for an application of your own as well.
//!
//! A server with flags, `simurgh.toml`, logs, signals and drain is three lines around your user
//! sockets:
//!
//! ```no_run
//! use simurgh::{Context, Join, UserSocket, Payload, json};
//!
//! fn join(_: &mut Context<'_>, _: Payload<'_>) -> Join {
//!     Join::error(json!({"reason": "closed today"}))
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     simurgh_cli::run(|server| server.socket(UserSocket::new("/socket").channel("rooms:*",
//!     join))) }
//! ```
//!
//! What was typed (`flags`) and what the file says (`file`) are both a `Layer` of
//! optional values, described once in `keys`; `settings` merges them, checks the whole and only
//! then is anything started (`serve`). Standard output carries one line for each address,
//! `listening on http://…`, once the server is ready; everything else goes to standard error.
//!
//! `drive` has the same application driven in this process, without a network (see `drive`).
//!
//! `run_as` has the application's own name and version in `--version` and the man pages.
//!
//! `load` is a tool beside the server: it puts servers under load and measures (see `load`).
//! `observe` looks into a running one (see `observe`). `tune` compares what a machine allows with
//! what connections need (see `tune`). `token` makes tokens and looks into them (see `token`).
//!
//! Exit status: 0 after a drain, 1 when the server cannot start, 2 when flags or file are wrong,
//! 128 plus the signal's number when a second signal ended it at once; `load`, `token` and `tune`
//! have their own.

#[cfg(feature = "nats")]
mod cluster;
mod config;
mod documents;
mod drive;
mod file;
mod flags;
mod keys;
mod layer;
mod load;
mod logging;
mod mistakes;
mod notify;
mod observe;
mod road;
mod serve;
mod settings;
mod token;
mod tokens;
mod tune;
mod units;
mod version;

use std::io::Write;
use std::process::ExitCode;

use clap::FromArgMatches;
use simurgh::{Builder, declared};

use flags::{Cli, Command};
use settings::{Declared, Refusal, Settings};
use version::Program;

/// Runs an application of your own with the commands `serve`, `config`, `drive`, `load`, `observe`,
/// `road`, `token` and `tune`.
///
/// `application` gets a server that has all settings of flags and file, and adds user_sockets and
/// pages; what it sets itself comes last. The keys that are about declared channels are not taken.
/// Its name is its file's; [`run_as`] gives it a version, too.
pub fn run(application: impl FnOnce(Builder) -> Builder) -> ExitCode {
    run_with(&Program::unnamed(), Channels::InRust, |builder, _| application(builder))
}

/// As [`run`], for an application that says who it is: what `--version` prints, with the version
/// and commit of Simurgh behind it, and what completions and man pages call it.
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

/// Runs the channels that `simurgh.toml` declares, or without any the built-in chat, and the chat
/// page or the files that are served in its place.
pub fn run_declared() -> ExitCode {
    run_with(&Program::simurgh(), Channels::Declared, |builder, declared| match declared {
        Some(Declared { user_socket, page }) => {
            let builder = match declared::hosted(&user_socket) {
                Some(hosted) => builder.socket(hosted),
                None => builder,
            };
            builder.socket(user_socket).http(page)
        }
        None => builder,
    })
}

/// Where the channels come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channels {
    /// The application has its own; nothing about declared ones makes sense.
    InRust,
    /// `[[channel]]` tables, or the built-in chat.
    Declared,
}

fn run_with(
    program: &Program,
    channels: Channels,
    application: impl FnOnce(Builder, Option<Declared>) -> Builder,
) -> ExitCode {
    avoid_huge_pages();
    simurgh_reactor::use_built_in_name_services();
    let command = flags::command(channels, program);
    let cli = match command.clone().try_get_matches() {
        Ok(matches) => Cli::from_arg_matches(&matches),
        Err(error) => Err(error),
    };
    let cli = match cli {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way too, with status 0. A closed pipe is no reason to
            // panic.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(WRONG_SETTINGS));
        }
    };
    match cli.command {
        Command::Serve(serve) => match Settings::load(*serve, channels) {
            Ok(settings) => serve::serve(settings, application),
            Err(refusal) => refuse(&refusal, "nothing was started"),
        },
        #[cfg(feature = "nats")]
        Command::Config(config::Flags { nats_permissions: Some(prefix), nats_streams, .. }) => {
            match cluster::permissions(&prefix, nats_streams) {
                Ok(text) => {
                    print(&text);
                    ExitCode::SUCCESS
                }
                Err(error) => fail(&format!("--nats-permissions: {error}")),
            }
        }
        Command::Config(config::Flags { check: Some(path), .. }) => {
            match Settings::check(&path, channels) {
                Ok(()) => {
                    print(&format!("{}: ok\n", path.display()));
                    ExitCode::SUCCESS
                }
                Err(refusal) => refuse(&refusal, "see `simurgh config` for every key"),
            }
        }
        Command::Config(config::Flags { check: None, .. }) => {
            print(&config::text(channels));
            ExitCode::SUCCESS
        }
        Command::Load(flags) => load::load(*flags),
        Command::Drive(flags) => drive::drive(*flags, channels, application),
        Command::Observe(flags) => observe::observe(&flags),
        Command::Road(flags) => road::road(&flags),
        Command::Token(flags) => token::token(&flags),
        Command::Tune(flags) => tune::tune(flags),
        Command::Completions(flags) => documents::completions(&flags, command),
        Command::ManPages(flags) => documents::man_pages(&flags, command),
    }
}

/// Has memory given to the process in small pages; first of all, since what is there by then stays
/// as it is. Zeroing a huge one makes a turn of 5 ms where the hypervisor has to find it first
/// (measured), and half of it is then memory nobody uses.
fn avoid_huge_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "huge pages stay on");
    }
}

fn refuse(refusal: &Refusal, consequence: &str) -> ExitCode {
    let count = match refusal.0.len() {
        1 => "1 mistake".to_owned(),
        n => format!("{n} mistakes"),
    };
    complain(&format!("{refusal}\n{count}; {consequence}"));
    ExitCode::from(WRONG_SETTINGS)
}

/// Says why it cannot be done.
fn fail(why: &str) -> ExitCode {
    complain(&format!("simurgh: {why}"));
    ExitCode::FAILURE
}

/// What flags and settings that are wrong exit with, as clap does.
const WRONG_SETTINGS: u8 = 2;

/// Writes to standard output; a reader that went away is its own affair.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Writes to standard error; from threads of the process's own table only, never a shard's.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
