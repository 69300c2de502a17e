//! The load generator behind `simurgh load`: scenarios and Tsung's own files, virtual users,
//! measurements, reports and a dashboard. It does not depend on the server.
//!
//! Each part is a crate, in the order of the data flow: [`toml`] or [`tsung`] parse a [`scenario`],
//! the [`engine`] runs it (on several hosts: [`fleet`]) over connections of [`http`] and [`tls`],
//! [`record`] measures, [`report`] writes, [`dashboard`] and [`progress`] show. [`benchmark`] sends
//! one HTTP request again and again. This crate joins them.

mod load;

pub use load::load;
pub use simurgh_load_benchmark as benchmark;
pub use simurgh_load_client::{http, tls};
pub use simurgh_load_engine::{self as engine, fleet, stamp};
pub use simurgh_load_record as record;
pub use simurgh_load_report::{self as report, control, dashboard, meter, progress};
pub use simurgh_load_scenario::{self as scenario, answer, toml};
pub use simurgh_load_tsung as tsung;
