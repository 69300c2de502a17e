//! The native language of scenarios. `simurgh load init` prints a commented example.
//!
//! Top of the file: `name`, `seed`, `duration` and `max_users` of the whole run, `repeat` of the
//! phases, `follow_stamps` (`true`: count stamped messages that come twice or out of order, at 8
//! bytes a user; `"exact"`: and those that are missing, by all their numbers), `vars` (names that
//! need not be set anywhere), `spread` (over several targets: `"round-robin"`, `"sticky"`,
//! `"elsewhere"`, `"random"`). Then tables:
//!
//! | table | keys |
//! |---|---|
//! | `[target]` or `[[target]]` | `url`, `address`, `weight` |
//! | `[[phase]]` | `duration`, `rate` or `users`, `arrivals`, and more (below) |
//! | `[[session]]` | `name`, `weight`, `protocol`, `steps`, and more (below) |
//! | `[[appointment]]` | `at`, `session` |
//! | `[pass]` | figures, each with one condition or a list of them |
//! | `[files]`, `[user_agents]` | names with paths or rows; names with weights |
//! | `[timeouts]` | `connect`, `reply`, `retries`, `retry_wait` |
//! | `[sources]` | `addresses`, `ports`, `receive_buffer_bytes`, `send_buffer_bytes` |
//! | `[[agent]]` | `address`, `token`, `weight`, `addresses` |
//! | `[tls]` | `insecure`, `roots`, `identity` |
//! | `[tsung]` | `version`, `full_stats`, `dump`, `proxy` |
//!
//! A phase may also have `name`, `max_users`, `wait_for_users`, `hold` (it begins when the run is
//! resumed) and `weights`; a session `transport` (`"websocket"`, `"longpoll"`),
//! `heartbeat`, `reconnect` (`min`, `max`, `attempts`, `rejoin`), `drop` (connections that are
//! cut: `every`, `for`, `how`, `reconnect`, `phase`), `resume` and `read_rate_max` (bytes a
//! second).
//!
//! Rows are a list or a range: `{ from = 1, to = 600 }`.
//!
//! A step is a table with one verb (`steps.rs` lists them); its texts are templates
//! (`template.rs`).
//! Times are texts with a unit, rates numbers per second or texts such as `"60/min"`.

mod answer;
mod read;
mod steps;
mod tables;
mod target;
mod template;
mod units;
mod vars;
mod verbs;
mod write;
mod write_steps;

pub use read::read;
pub use tables::spread;
pub use target::url as target_url;
pub(crate) use template::print as print_template;
pub use units::{address_range, rate};
pub use write::write;

#[cfg(test)]
pub(crate) mod tests;
