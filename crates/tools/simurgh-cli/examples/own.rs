//! Your own application with the commands of `simurgh`: `own serve`, `own config`, `own drive`.
//!
//! `cargo run -p simurgh-cli --example own -- serve --listen 127.0.0.1:4000`

use std::process::ExitCode;
use std::time::Duration;

use simurgh::{ChannelRoute, Join, Outcome, Payload, ShardChannel, ShardContext, UserSocket};

/// As in the binary, it returns memory that clients or channels release to the system.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const REMEMBERED: usize = 1024;

#[derive(Default)]
struct Echo {
    remembered: Vec<u8>,
}

impl Echo {
    fn remember(&mut self, payload: &Payload<'_>) {
        let text = payload.json().unwrap_or_default().as_bytes();
        if text.len() > REMEMBERED - self.remembered.len() {
            self.remembered.clear();
        }
        self.remembered.reserve_exact(REMEMBERED - self.remembered.len());
        self.remembered.extend(text.iter().take(REMEMBERED));
    }
}

impl ShardChannel for Echo {
    fn handle_in(
        &mut self,
        _: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        match event {
            "echo" => {
                self.remember(&payload);
                Outcome::ok(payload.into_owned())
            }
            "remembered" => Outcome::ok(simurgh::json!(self.remembered.len())),
            // Shows that a panic ends one channel, is logged, and does not affect others.
            "divide" => divide(&payload),
            // Shows the effects of a callback that blocks its shard.
            "hold" => {
                std::thread::sleep(Duration::from_millis(payload.parse().unwrap_or(0)));
                Outcome::NoReply
            }
            _ => Outcome::unknown_event(),
        }
    }

    /// Releases the memory after a time without messages.
    fn hibernate(&mut self) {
        self.remembered = Vec::new();
    }
}

fn divide(payload: &Payload<'_>) -> Outcome {
    let (dividend, divisor): (i64, i64) = payload.parse().unwrap_or((0, 1));
    Outcome::ok(simurgh::json!({"quotient": dividend / divisor}))
}

fn main() -> ExitCode {
    let user_socket = UserSocket::new("/socket")
        .channel(ChannelRoute::on_shard("echo:*", |_, _| Join::ok(Echo::default())));
    simurgh_cli::run_as("own", "0.3.1", |server| server.socket(user_socket))
}
