//! `simurgh token sign`: makes a token like a back end.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use simurgh_text::output::print;
use simurgh_text::{Choice, duration, word_or};
use simurgh_token::Signer;
use simurgh_token::phoenix::Key;

use super::key;
use crate::settings::values;

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Sign {
    #[command(flatten)]
    key: key::Flags,
    /// Claims: a JSON object, or with --phoenix-salt any JSON.
    #[arg(long, value_name = "JSON", value_parser = values::json)]
    claims: Option<Value>,
    /// Subject: the claim `sub`, or with --phoenix-salt and without --claims the whole data.
    #[arg(long, value_name = "NAME")]
    sub: Option<String>,
    /// Lifetime, or never.
    #[arg(long, value_name = "TIME", default_value = "1h",
          value_parser = word_or("never", duration))]
    expires_in: Choice<Duration>,
    /// Id of the key (`kid`), for servers with several keys.
    #[arg(long, value_name = "NAME", conflicts_with = "phoenix_salt")]
    kid: Option<String>,
}

const AFTER_HELP: &str = "\
Prints the token only. The key decides the algorithm: HS256 (--secret, 32 bytes or more), RS256,\n\
ES256 or EdDSA (a private key in PEM, or a JWK).\n\
  SIMURGH_TOKEN_KEY=$(cat secret) simurgh token sign --secret --sub alice\n\
  simurgh token sign --key-file secret_key_base --phoenix-salt 'user socket' --claims 42";

/// Fails if flags or keys are wrong.
pub(super) fn sign(flags: &Sign, now: Duration) -> Result<(), String> {
    let key = flags.key.required()?;
    let signer = match &flags.key.phoenix_salt {
        Some(salt) => {
            let key = Key::derive(key.secret_key_base()?, salt);
            Signer::Phoenix(key.map_err(|error| error.to_string())?)
        }
        None => {
            let key = key.signing()?;
            Signer::Jwt(match &flags.kid {
                Some(id) => key.with_id(id),
                None => key,
            })
        }
    };
    let data = data(flags)?;
    let token = signer.mint(&data, now, flags.expires_in.value());
    print(&format!("{}\n", token.map_err(|error| error.to_string())?));
    Ok(())
}

fn data(flags: &Sign) -> Result<Value, String> {
    let is_phoenix = flags.key.phoenix_salt.is_some();
    match (flags.claims.clone(), &flags.sub) {
        (Some(Value::Object(mut claims)), Some(sub)) => {
            claims.insert("sub".to_owned(), sub.as_str().into());
            Ok(Value::Object(claims))
        }
        (Some(_), Some(_)) => Err("--sub needs --claims to be a JSON object".to_owned()),
        (Some(claims), None) if is_phoenix || claims.is_object() => Ok(claims),
        (Some(_), None) => Err("--claims of a JWT must be a JSON object".to_owned()),
        (None, Some(sub)) if is_phoenix => Ok(sub.as_str().into()),
        (None, Some(sub)) => Ok(json!({ "sub": sub })),
        (None, None) => Err("the token would be empty: give --claims or --sub".to_owned()),
    }
}
