//! `simurgh hook`: makes secrets for back ends, and asks one a question by hand.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use simurgh::hooks::http::{HeaderName, HeaderValue, header};
use simurgh_hooks::{
    Asked, Failure, FailureKind, Hook as Started, Kind, OnFailure, Question, Secret, Verdict,
};
use simurgh_text::output::{WRONG_SETTINGS, complain, print};
use tracing_subscriber::filter::LevelFilter;

use crate::logging;
use crate::settings::values::LogFormat;
use crate::settings::{Channels, Serve, Settings};

#[derive(Debug, Args)]
pub(crate) struct Hook {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints a new secret: put it on the first line of secret_file, and give it to the application
    Secret,
    /// Asks an application one question, signed like the server's, and explains the outcome
    Try(Try),
}

#[derive(Debug, Args)]
struct Try {
    /// Name of the hook, as in simurgh.toml.
    hook: String,
    /// The question.
    #[arg(value_parser = kinds())]
    question: Kind,
    /// Settings file. Default: ./simurgh.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A cookie of the client; may be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    cookie: Vec<String>,
    /// A header of the client's upgrade; may be repeated.
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// Fields of the question, in addition to those that every client has: {"topic": "rooms:7"}.
    #[arg(long, value_name = "JSON", default_value = "{}")]
    data: String,
}

fn kinds() -> impl TypedValueParser<Value = Kind> {
    let words = PossibleValuesParser::new(Kind::ALL.map(Kind::word));
    words.try_map(|word| serde_json::from_value::<Kind>(word.into()))
}

pub(crate) fn hook(flags: &Hook) -> ExitCode {
    let done = match &flags.command {
        Command::Secret => secret(),
        Command::Try(flags) => ask(flags),
    };
    done.unwrap_or_else(|why| {
        complain(&format!("simurgh hook: {why}"));
        ExitCode::from(WRONG_SETTINGS)
    })
}

fn secret() -> Result<ExitCode, String> {
    let secret = Secret::generate().map_err(|error| error.to_string())?;
    print(&format!("{secret}\n"));
    Ok(ExitCode::SUCCESS)
}

/// Status 0 if the application allows it, else 1.
fn ask(flags: &Try) -> Result<ExitCode, String> {
    let serve = Serve { config: flags.config.clone(), ..Serve::default() };
    let settings = Settings::load(serve, Channels::Declared).map_err(|why| why.to_string())?;
    let _log = logging::start(LevelFilter::WARN, LogFormat::Text);
    let declared = settings.declared.ok_or("the file declares no channels")?;
    let set = declared.user_socket.parts().hooks.clone();
    let set = set.ok_or("the file has no [[hook]]: add that table")?;
    set.start("try", None).map_err(|error| error.to_string())?;
    let started = set.started().and_then(|hooks| hooks.hook(&flags.hook));
    let known = set.names().join(", ");
    let hook = started.ok_or_else(|| format!("no hook {:?}; the hooks are {known}", flags.hook))?;
    let (question, data) = (question(flags)?, data(flags)?);
    print(&format!("{}/{}\n{data}\n", hook.config().url, question.kind.word()));
    let verdict = match hook.ask(question) {
        Asked::Now(verdict) => verdict,
        Asked::Later(question) => {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            runtime.map_err(|error| error.to_string())?.block_on(question.verdict(data.into()))
        }
    };
    let (is_allowed, text) = explained(&hook, &verdict);
    print(&format!("{text}\n"));
    Ok(if is_allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn data(flags: &Try) -> Result<String, String> {
    let more: Map<String, Value> = serde_json::from_str(&flags.data)
        .map_err(|error| format!("--data {:?} is not a JSON object: {error}", flags.data))?;
    let mut data = json!({"connection": "try", "ip": "127.0.0.1"});
    if let (Kind::Connect, Some(data)) = (flags.question, data.as_object_mut()) {
        data.insert("path".to_owned(), "/socket/websocket".into());
        data.insert("params".to_owned(), json!({}));
        data.insert("transport".to_owned(), "websocket".into());
    }
    if let Some(data) = data.as_object_mut() {
        data.extend(more);
    }
    Ok(data.to_string())
}

fn question(flags: &Try) -> Result<Question, String> {
    let mut headers = Vec::new();
    if !flags.cookie.is_empty() {
        let value = HeaderValue::try_from(flags.cookie.join("; "));
        headers.push((header::COOKIE, value.map_err(|error| format!("--cookie: {error}"))?));
    }
    for text in &flags.header {
        let (name, value) = text.split_once(':').ok_or_else(|| no_header(text))?;
        let name = HeaderName::try_from(name.trim()).map_err(|_| no_header(text))?;
        headers.push((name, HeaderValue::try_from(value.trim()).map_err(|_| no_header(text))?));
    }
    let forwarded = Arc::from(headers);
    let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Ok(Question { kind: flags.question, client, forwarded, traceparent: None, cache: None })
}

fn no_header(text: &str) -> String {
    format!("--header {text:?} has not the form \"name: value\"")
}

/// Whether it is allowed, and the outcome in words.
fn explained(hook: &Started, verdict: &Verdict) -> (bool, String) {
    match verdict {
        Verdict::Allowed(answer) => (true, format!("allowed, and granted:\n{answer:#?}")),
        Verdict::Refused(refusal) => {
            let (reason, response) = (&refusal.reason, &refusal.response);
            let text = "a connect is answered 403 with this reason, a join or a message with";
            (false, format!("refused: {reason}\n{text} {response}"))
        }
        Verdict::Failed(failure) => (false, unanswered(hook, failure)),
    }
}

fn unanswered(hook: &Started, failure: &Failure) -> String {
    let why = match failure.kind {
        FailureKind::Timeout => format!("no answer within {:?}", hook.config().answer_timeout),
        FailureKind::Overloaded => "too many questions wait".to_owned(),
        FailureKind::Open => {
            "the last questions failed, so the server sends no more for now".to_owned()
        }
        FailureKind::Failed | FailureKind::Rejected => {
            "no connection, or an answer that decides nothing: the line above says which".to_owned()
        }
    };
    let effect = match hook.config().on_failure {
        OnFailure::Allow if failure.allows => {
            "on_failure = \"allow\": as if the hook were not configured"
        }
        OnFailure::Allow => "a status 4xx allows nothing, in spite of on_failure = \"allow\"",
        OnFailure::Refuse => {
            "on_failure = \"refuse\": a connect is answered 503, a join or a message \
             {\"reason\":\"unavailable\"}"
        }
    };
    format!("failed: {why}\n{effect}")
}
