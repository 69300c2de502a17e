//! A layer of settings: what one source, the flags or the file, says, and nothing of what it does
//! not.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use simurgh::CheckOrigin;
use tracing_subscriber::filter::LevelFilter;

use crate::units::{self, Choice, LogFormat};

/// Declares the fields once, for clap and for laying one layer over another.
macro_rules! layer {
    ($($(#[$attribute:meta])* $field:ident: $type:ty,)*) => {
        /// All settings, each only if it was given. Names are those of the keys of `simurgh.toml`;
        /// flags have dashes. What each is for stands in [`keys`](crate::keys), for the help as
        /// well.
        #[derive(Debug, Default, Clone, PartialEq, clap::Args)]
        pub(crate) struct Layer {
            $($(#[$attribute])* pub(crate) $field: Option<$type>,)*
        }

        impl Layer {
            /// This layer, and where it says nothing the one below.
            pub(crate) fn over(self, below: Self) -> Self {
                Self { $($field: self.$field.or(below.$field),)* }
            }

            /// The names of all fields.
            #[cfg(test)]
            pub(crate) const FIELDS: &'static [&'static str] = &[$(stringify!($field)),*];
        }
    };
}

layer! {
    #[arg(long, value_name = "ADDRESS", value_parser = units::address)]
    listen: Vec<SocketAddr>,
    #[arg(long, value_name = "ADDRESS", value_parser = units::address_or_off)]
    admin_listen: Choice<SocketAddr>,
    #[arg(long, value_name = "N", value_parser = units::shards)]
    shards: Choice<usize>,
    #[arg(long, value_name = "N", value_parser = units::connections)]
    max_connections: Choice<usize>,
    #[arg(long, value_name = "N", value_parser = units::connections_of_one)]
    max_connections_per_address: Choice<u32>,
    #[arg(long, value_name = "N", value_parser = units::connections_of_one)]
    max_connections_per_user: Choice<u32>,
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pin_shards: bool,
    #[arg(long, value_name = "TIME", value_parser = units::duration_or_off)]
    idle_timeout: Choice<Duration>,
    #[arg(long, value_name = "TIME", value_parser = units::duration_or_off)]
    hibernate_after: Choice<Duration>,
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    handshake_timeout: Duration,
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    close_timeout: Duration,
    #[arg(long, value_name = "TIME", value_parser = units::duration_or_zero)]
    drain_time: Duration,
    #[arg(long, value_name = "SIZE", value_parser = units::message_bytes)]
    frame_bytes_max: usize,
    #[arg(long, value_name = "SIZE", value_parser = units::message_bytes)]
    message_bytes_max: usize,
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    inbound_budget: usize,
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    outbound_bytes_max: usize,
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    outbound_budget: usize,
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    slow_after: Duration,
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    message_timeout: Duration,
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    decision_timeout: Duration,
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    mailbox_bytes_max: usize,
    #[arg(long, value_name = "ORIGINS", value_parser = units::check_origin)]
    check_origin: Choice<CheckOrigin>,
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = units::host)]
    trusted_hosts: Vec<String>,
    #[arg(long, value_name = "NETWORKS", value_delimiter = ',', value_parser = units::network)]
    trusted_proxies: Vec<IpNet>,
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    proxy_protocol: bool,
    // Checked with the rest of the settings, not by clap, which would repeat it in its message.
    #[arg(long, value_name = "TOKEN", env = "SIMURGH_API_TOKEN", hide_env_values = true)]
    api_token: String,
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    observer: bool,
    #[arg(long, value_name = "N", value_parser = units::http_threads)]
    http_threads: Choice<usize>,
    #[arg(long, value_name = "N", value_parser = units::http_connections)]
    http_connections_max: usize,
    #[arg(long, value_name = "N", value_parser = units::http_connections)]
    http_connections_reserved: usize,
    #[arg(long, value_name = "SIZE", value_parser = units::head_bytes)]
    http_head_bytes_max: usize,
    #[arg(long, value_name = "N", value_parser = units::headers)]
    http_headers_max: usize,
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    http_target_bytes_max: usize,
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    http_body_bytes_max: usize,
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    http_head_timeout: Duration,
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    http_body_timeout: Duration,
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    http_body_rate_min: usize,
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    http_write_timeout: Duration,
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    http_idle_timeout: Duration,
    #[arg(long, value_name = "N", value_parser = units::http_requests)]
    http_requests_max: u64,
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    callback_warning: Duration,
    #[arg(long, value_name = "LEVEL", value_parser = units::level)]
    log: LevelFilter,
    #[arg(long, value_name = "FORMAT", value_parser = units::log_format)]
    log_format: LogFormat,
    #[arg(long, value_name = "DIRECTORY", value_parser = units::directory)]
    static_files: PathBuf,
    #[arg(long, value_name = "SIZE", value_parser = units::bytes_or_off)]
    static_copies_bytes_max: Choice<usize>,
    #[arg(long, value_name = "N", value_parser = units::channels)]
    max_channels: u16,
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    auth_token: bool,
    #[arg(long, value_name = "TIME", value_parser = units::duration_or_off)]
    longpoll: Choice<Duration>,
    #[arg(long, value_name = "N", value_parser = units::members)]
    announce_joins_up_to: u32,
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    presence_interval: Duration,
    #[arg(long, value_name = "TIME", value_parser = units::duration_or_zero)]
    presence_leave_delay: Duration,
    #[arg(long, value_name = "N", value_parser = units::presences)]
    presence_list_max: usize,
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    presence_summary_interval: Duration,
    #[arg(long, value_name = "N", value_parser = units::presences)]
    presence_sample: usize,
    #[arg(long, value_name = "SIZE", value_parser = units::key_bytes)]
    presence_key_bytes_max: usize,
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    presence_meta_bytes_max: usize,
    #[arg(long, value_name = "N", value_parser = units::entries)]
    presence_channel_entries_max: usize,
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    history_bytes_max: usize,
    #[arg(long, value_name = "N", value_parser = units::presences)]
    history_replay_count: usize,
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    history_replay_bytes: usize,
    #[arg(long, value_name = "FILE", value_parser = units::file)]
    history_save: PathBuf,
}
