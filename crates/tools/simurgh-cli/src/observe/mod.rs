//! `simurgh observe URL`: shows the state of a running server, in a terminal or for a script.
//!
//! ```text
//! Client (HTTP) <-- Fetcher, a thread: once a second, and on keys --> Update
//! keys, Update --> App (state, no terminal) --> draw (ratatui, crossterm) --> the terminal
//! ```
//!
//! Crossterm's signal handler writes to a descriptor. This is safe: without shards and workers this
//! process has only one descriptor table.

mod app;
pub(crate) mod client;
mod columns;
mod draw;
mod facts;
mod fetch;
mod once;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use app::App;
use client::Client;
use fetch::Fetcher;
use simurgh_text::output::{WRONG_SETTINGS, complain, fail, print};

/// The longest wait for a key before updates are shown.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Observe {
    /// Address of the server, such as http://127.0.0.1:4000.
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:4000")]
    url: String,
    /// The server's api_token. Prefer the environment: the process list shows flags.
    #[arg(long, value_name = "TOKEN", env = "SIMURGH_API_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Checks only that the server answers (/healthz), for containers; needs no token.
    #[arg(long, conflicts_with = "once")]
    health: bool,
    /// Starts with the view of the cluster; with --once prints only that view.
    #[arg(long, conflicts_with = "health")]
    cluster: bool,
    /// Prints the figures once and exits.
    #[arg(long)]
    once: bool,
    /// Prints them as JSON.
    #[arg(long, requires = "once")]
    json: bool,
    /// Number of topics and connections that --once prints.
    #[arg(long, value_name = "N", requires = "once", default_value = "10",
          value_parser = clap::value_parser!(u16).range(1..=100))]
    most: u16,
}

const AFTER_HELP: &str = "\
The server answers its own machine, and with observer = true and api_token other machines, too\n\
(docs/OBSERVER.md). Over SSH run observe there, or use ssh -L.\n\
Exit status: 0 success, 1 if the server is unreachable, refuses or is not Simurgh, 2 if a flag is\n\
wrong.";

pub(crate) fn observe(flags: &Observe) -> ExitCode {
    let client = match Client::new(&flags.url, flags.token.as_deref()) {
        Ok(client) => client,
        Err(why) => {
            complain(&format!("simurgh: {why}"));
            return ExitCode::from(WRONG_SETTINGS);
        }
    };
    match show(flags, client) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail(&why),
    }
}

fn show(flags: &Observe, client: Client) -> Result<(), String> {
    if flags.health {
        client.health()?;
        print("ok\n");
        return Ok(());
    }
    if flags.once {
        print(&match flags.cluster {
            true => once::cluster(&client, flags.json)?,
            false => once::server(&client, flags.json, flags.most)?,
        });
        return Ok(());
    }
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() || dumb {
        return Err(
            "this is not a terminal: use `simurgh observe --once`, with --json for scripts"
                .to_owned(),
        );
    }
    // The first request runs before the screen starts, so that its error is visible.
    let overview = client.overview(true)?;
    if flags.cluster && overview.cluster.is_none() {
        return Err(format!("{} has no [cluster]: leave out --cluster", client.base()));
    }
    let mut app = App::new(client.base());
    app.update(fetch::Update::Overview(Box::new(overview)));
    if flags.cluster {
        app.go(app::View::Cluster);
    }
    let fetcher =
        Fetcher::start(client).map_err(|error| format!("cannot start a thread: {error}"))?;
    let mut terminal =
        ratatui::try_init().map_err(|error| format!("cannot use the terminal: {error}"))?;
    let ended = run(&mut terminal, &fetcher, &mut app);
    ratatui::restore();
    ended.map_err(|error| format!("lost the terminal: {error}"))
}

fn run(
    terminal: &mut ratatui::DefaultTerminal,
    fetcher: &Fetcher,
    app: &mut App,
) -> io::Result<()> {
    let mut is_new = true;
    fetcher.act(fetch::Action::None, app.wanted());
    loop {
        for update in fetcher.updates() {
            app.update(update);
            is_new = true;
        }
        if std::mem::take(&mut is_new) {
            terminal.draw(|frame| draw::draw(app, frame))?;
        }
        if !event::poll(POLL_INTERVAL)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                let action = app.key(key);
                if matches!(action, fetch::Action::Quit) {
                    return Ok(());
                }
                fetcher.act(action, app.wanted());
                is_new = true;
            }
            Event::Resize(..) => is_new = true,
            _ => {}
        }
    }
}
