//! `simurgh token inspect`: shows a token, and verifies it with a key.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use simurgh_text::output::print;
use simurgh_text::{duration, duration_or_zero, visible};
use simurgh_token::jwt::Checks;
use simurgh_token::phoenix::MaxAge;
use simurgh_token::{Claims, Format, Inspection, PhoenixSettings, Settings, TokenError, Verifier};

use super::{key, standard_input};

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Inspect {
    /// The token; - reads standard input, which the process list does not show.
    #[arg(value_name = "TOKEN")]
    token: String,
    #[command(flatten)]
    key: key::Flags,
    /// Tolerated difference between the clocks of issuer and server.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration_or_zero)]
    leeway: Duration,
    /// Maximum age of a Phoenix.Token. Default: as in the token.
    #[arg(long, value_name = "TIME", requires = "phoenix_salt", value_parser = duration)]
    max_age: Option<Duration>,
    /// Accepted `iss` of a JWT. Repeatable.
    #[arg(long, value_name = "ISS", conflicts_with = "phoenix_salt")]
    issuer: Vec<String>,
    /// Accepted `aud` of a JWT. Repeatable.
    #[arg(long, value_name = "AUD", conflicts_with = "phoenix_salt")]
    audience: Vec<String>,
    /// Prints JSON instead of lines.
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
With a key inspect verifies the token as a server would, else it only shows it.\n\
Exit status: 0 if it is shown (and valid, with a key), 1 if it is invalid or not a token, 2 if a\n\
flag or the key is wrong.";

/// The result of the verification; `None` without a key.
type Verdict = Option<Result<Claims, TokenError>>;

/// Fails if flags or keys are wrong.
pub(super) fn inspect(flags: &Inspect, now: Duration) -> Result<ExitCode, String> {
    let token = match flags.token.as_str() {
        "-" if flags.key.reads_standard_input() => {
            return Err(
                "standard input cannot be both key and token: read one from a file".to_owned()
            );
        }
        "-" => String::from_utf8_lossy(&standard_input()?).trim().to_owned(),
        token => token.trim().to_owned(),
    };
    let inspected = simurgh_token::inspect(&token);
    let is_phoenix = inspected.as_ref().is_ok_and(|it| it.format == Format::Phoenix);
    let verifier = verifier(flags, is_phoenix)?;
    let inspection = match inspected {
        Ok(inspection) => inspection,
        Err(error) => return Ok(refused(flags, &error)),
    };
    let verdict = verifier.map(|verifier| verifier.verify(&token, now));
    match flags.json {
        true => print(&format!("{:#}\n", as_json(&inspection, &verdict))),
        false => print(&as_text(&inspection, &verdict, now)),
    }
    Ok(match verdict {
        None | Some(Ok(_)) => ExitCode::SUCCESS,
        Some(Err(_)) => ExitCode::FAILURE,
    })
}

fn verifier(flags: &Inspect, is_phoenix: bool) -> Result<Option<Verifier>, String> {
    let Some(key) = flags.key.read()? else {
        let needs_key = flags.key.phoenix_salt.is_some();
        return if needs_key { flags.key.required().map(|_| None) } else { Ok(None) };
    };
    if let Some(salt) = &flags.key.phoenix_salt {
        let settings = PhoenixSettings {
            leeway: flags.leeway,
            max_age: flags.max_age.map(MaxAge::Within),
            ..PhoenixSettings::new(key.secret_key_base()?, salt)
        };
        let verifier = Verifier::new(Settings::Phoenix(settings));
        return verifier.map(Some).map_err(|error| error.to_string());
    }
    if is_phoenix {
        return Err("this is a Phoenix.Token: add --phoenix-salt".to_owned());
    }
    let checks = Checks {
        leeway: flags.leeway,
        issuers: flags.issuer.clone(),
        audiences: flags.audience.clone(),
        ..Checks::default()
    };
    Ok(Some(Verifier::of_keys(key.verifying()?, checks)))
}

fn refused(flags: &Inspect, error: &TokenError) -> ExitCode {
    match flags.json {
        true => {
            let answer = serde_json::json!({
                "verified": false, "reason": error.reason(), "error": error.to_string(),
            });
            print(&format!("{answer:#}\n"));
        }
        false => print(&format!("{:<10} {error}\n", error.reason())),
    }
    ExitCode::FAILURE
}

fn as_text(inspection: &Inspection, verdict: &Verdict, now: Duration) -> String {
    let verdict = match verdict {
        Some(Ok(_)) => "valid: signed by this key, and not expired".to_owned(),
        None => "not verified, because no key was given".to_owned(),
        Some(Err(error)) => format!("{}: {error}", error.reason()),
    };
    // The issuer of the token chooses these texts, so they are escaped.
    let text = inspection.text(now);
    let lines = text.lines().map(|line| visible(line) + "\n");
    lines.chain([format!("{:<10} {verdict}\n", "verdict")]).collect()
}

fn as_json(inspection: &Inspection, verdict: &Verdict) -> Value {
    let mut json = inspection.json();
    json["verified"] = verdict.as_ref().map(Result::is_ok).into();
    if let Some(Err(error)) = verdict {
        json["reason"] = error.reason().into();
        json["error"] = error.to_string().into();
    }
    json
}
