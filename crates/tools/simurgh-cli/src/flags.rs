//! The command line. Only given flags are kept; defaults are applied later, below the file.

use clap::{CommandFactory, Parser, Subcommand};

use crate::settings::{Channels, Serve, keys};
use crate::version::Program;
use crate::{api, config, drive, hook, load, observe, packaging, token};

/// A real-time server that speaks Phoenix Channels, and a load generator.
#[derive(Debug, Parser)]
#[command(arg_required_else_help = true, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serves channels, pages and the publish API on one port
    Serve(Box<ServeCommand>),
    /// Starts the running server's program again, and has it take over without an outage
    Restart(Box<Serve>),
    /// Prints simurgh.toml with every key and its default, or checks a file
    Config(config::Flags),
    /// Runs a load test against a WebSocket or HTTP server
    Load(Box<load::Load>),
    /// Measures how many clients one server on this machine holds
    Road(simurgh_road::Flags),
    /// Drives your channels in this process, without a network, and measures them
    Drive(Box<drive::Flags>),
    /// Shows shards, topics, connections and errors of a running server
    Observe(observe::Observe),
    /// Publishes a message, as a back end does
    Publish(api::Publish),
    /// Pushes an event to the sockets of a user
    Push(api::Push),
    /// Ends a user's channels of a topic
    Kick(api::Kick),
    /// Closes the sockets of a user
    Disconnect(api::Disconnect),
    /// Refuses a user's connects, or joins of some topics, and closes the user's sockets
    Block(api::Block),
    /// Lifts a block of a user
    Unblock(api::Unblock),
    /// Revokes the tokens of a user, or one token, and closes their sockets
    Revoke(api::Revoke),
    /// Has a running server read its settings, keys and certificates again
    Reload(api::Reload),
    /// Lists topics and the numbers of their members
    Topics(api::Topics),
    /// Says which users are connected
    Online(api::Online),
    /// Lists open stays: users in topics, topics with members, connected users
    Stays(api::Stays),
    /// Shows notices that wait, and sends dead letters again
    Notices(api::Notices),
    /// Makes and inspects tokens: JWT and Phoenix.Token
    Token(token::Token),
    /// Makes secrets for back ends, and asks one a question
    Hook(hook::Hook),
    /// Compares this machine's limits with what N connections need, and raises them
    Tune(Box<simurgh_tune::Tune>),
    /// Prints a script for shell completion of commands and flags
    Completions(packaging::Completions),
    /// Writes man pages of all commands into a directory, for packages
    #[command(hide = true)]
    ManPages(packaging::ManPages),
}

/// The flags of `serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeCommand {
    #[command(flatten)]
    pub(crate) settings: Serve,
    /// Take over from the server that listens on the first address, if there is one: this one gets
    /// its listening sockets and histories, and that one drains
    #[arg(long)]
    pub(crate) take_over: bool,
}

const AFTER_HELP: &str = "\
Exit status: 0 after a drain, 1 if the server cannot start, 2 if a flag or the file is wrong.\n\
The first SIGTERM or SIGINT drains: the server accepts nothing new and closes every client with\n\
1012 within the drain time. Clients then reconnect, to another server or the next one. A second\n\
signal exits at once, with status 143 or 130.";

/// Hides flags that do not apply to such a program.
pub(crate) fn command(channels: Channels, program: &Program) -> clap::Command {
    let named = Cli::command()
        .name(program.name.clone())
        .version(program.short())
        .long_version(program.long());
    let hide = |command: clap::Command| {
        let hidden = keys::ALL.iter().filter(|key| !key.is_for(channels));
        hidden.fold(command, |command, key| command.mut_arg(key.name, |flag| flag.hide(true)))
    };
    let named = named.max_term_width(100).mut_subcommand("restart", hide);
    named.mut_subcommand("serve", |serve| hide(serve.after_help(AFTER_HELP)))
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;
    use crate::settings::PartialSettings;

    fn parse(line: &str) -> Result<PartialSettings, clap::Error> {
        let words = ["simurgh", "serve"].into_iter().chain(line.split_whitespace());
        let matches =
            command(Channels::Declared, &Program::simurgh()).try_get_matches_from(words)?;
        match Cli::from_arg_matches(&matches)?.command {
            Command::Serve(serve) => Ok(serve.settings.flags),
            _ => panic!("not serve"),
        }
    }

    #[test]
    fn command_line_definition_is_valid() {
        command(Channels::Declared, &Program::simurgh()).debug_assert();
        command(Channels::InRust, &Program::unnamed()).debug_assert();
    }

    #[test]
    fn settings_contain_only_the_given_flags() {
        assert_eq!(parse("").unwrap(), PartialSettings::default());
    }

    #[test]
    fn switches_take_a_value_that_overrides_the_file() {
        assert_eq!(parse("--pin-shards").unwrap().pin_shards, Some(true));
        assert_eq!(parse("--pin-shards=false").unwrap().pin_shards, Some(false));
        assert!(parse("--pin-shards=maybe").is_err());
    }

    #[test]
    fn list_flags_are_repeated_or_separated_by_commas() {
        let two = parse("--listen 127.0.0.1:1 --listen [::1]:2").unwrap().listen;
        assert_eq!(two.map(|list| list.len()), Some(2));
        let two = parse("--trusted-proxies 10.0.0.0/8,::1").unwrap().trusted_proxies;
        assert_eq!(two.map(|list| list.len()), Some(2));
    }
}
