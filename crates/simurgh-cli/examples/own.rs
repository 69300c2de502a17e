//! An application of one's own with the commands of `simurgh`: `own serve`, `own config`.
//!
//! `cargo run -p simurgh-cli --example own -- serve --listen 127.0.0.1:4000`

use std::process::ExitCode;

use simurgh::{Channel, Context, Join, Mount, Outcome, Payload};

struct Echo;

impl Channel for Echo {
    fn handle_in(&mut self, _: &mut Context<'_>, event: &str, payload: Payload<'_>) -> Outcome {
        match event {
            "echo" => Outcome::ok(payload.into_owned()),
            // To see that a mistake ends one channel, is logged, and harms nobody else.
            "divide" => divide(&payload),
            _ => Outcome::unknown_event(),
        }
    }
}

fn divide(payload: &Payload<'_>) -> Outcome {
    let (dividend, divisor): (i64, i64) = payload.parse().unwrap_or((0, 1));
    Outcome::ok(simurgh::json!({"quotient": dividend / divisor}))
}

fn main() -> ExitCode {
    let mount = Mount::new("/socket").channel("echo:*", |_, _| Join::ok(Echo));
    simurgh_cli::run(|server| server.mount(mount))
}
