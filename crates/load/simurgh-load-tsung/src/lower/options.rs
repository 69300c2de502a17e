//! `<options>`.

use std::time::Duration;

use simurgh_load_scenario::{DataFile, Think, Timeouts, rows_of};

use super::{Lower, given, is_true, unit_seconds};
use crate::xml::Element;

pub(super) struct Options {
    pub(super) seed: Option<u64>,
    pub(super) timeouts: Timeouts,
    pub(super) user_agents: Vec<(String, f64)>,
    pub(super) thinktime: ThinkTime,
    /// How many users a global synchronisation waits for, and how long.
    pub(super) global_number: u64,
    pub(super) global_timeout: Option<Duration>,
    pub(super) read_rate_max: Option<u64>,
    pub(super) websocket: WebSocket,
    /// Requests go to the servers with whole URLs.
    pub(super) proxy: bool,
}

pub(super) struct ThinkTime {
    /// Seconds.
    pub(super) value: f64,
    pub(super) random: bool,
    /// From and to, seconds.
    pub(super) range: Option<(f64, f64)>,
    /// Overrides the times of the sessions.
    pub(super) replaces: bool,
}

/// For servers of type `websocket`.
pub(super) struct WebSocket {
    pub(super) path: String,
    pub(super) binary: bool,
    pub(super) subprotocols: Vec<String>,
    pub(super) origin: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        let timeouts = Timeouts {
            reply: Duration::from_secs(600),
            retries: 3,
            retry_wait: Duration::from_millis(10),
            ..Timeouts::default()
        };
        let thinktime = ThinkTime { value: 5.0, random: false, range: None, replaces: false };
        let path = "/chat".to_owned();
        Self {
            seed: None,
            timeouts,
            user_agents: Vec::new(),
            thinktime,
            global_number: 100,
            global_timeout: None,
            read_rate_max: None,
            websocket: WebSocket { path, binary: true, subprotocols: Vec::new(), origin: None },
            proxy: false,
        }
    }
}

impl ThinkTime {
    pub(super) fn think(&self) -> Think {
        let seconds = |value| Duration::try_from_secs_f64(value).unwrap_or_default();
        match self.range {
            Some((min, max)) => Think::Uniform(seconds(min), seconds(max)),
            None if self.random => Think::Exponential(seconds(self.value)),
            None => Think::Constant(seconds(self.value)),
        }
    }
}

/// Options that are accepted and have no effect, with the reason.
const IGNORED: &[(&str, &str)] = &[
    ("hibernate", "an idle user needs no memory that could be given back"),
    ("ssl_ciphers", "TLS chooses by itself"),
    ("ssl_versions", "simurgh supports TLS 1.2 and 1.3"),
    ("ssl_reuse_sessions", "TLS chooses by itself"),
    ("ssl_disable_sni", "a name is always sent"),
    ("udp_rcv_buffer", "there is no UDP"),
    ("udp_snd_buffer", "there is no UDP"),
    ("bosh_path", "there is no BOSH"),
    ("job_notify_port", "there is no job scheduler"),
    ("max_ssh_startup_per_core", "there is no SSH"),
    ("tcp_reuseaddr", "connections set what they need"),
    ("tcp_reuseport", "connections set what they need"),
    ("ip_transparent", "source addresses must be this host's"),
    ("ip_bind_address_no_port", "it is always set"),
];

impl Lower<'_> {
    pub(super) fn options(&mut self, root: &Element) {
        for option in root.children_named("options").flat_map(Element::children) {
            match option.value("type") {
                Some("ts_http") => self.http_option(option),
                Some(other) => {
                    let name = option.value("name").unwrap_or_default();
                    let what = format!("the option `{name}` of {other} is ignored");
                    self.warn(option.line, what, format!("there are no sessions of type {other}"));
                }
                None => self.option(option),
            }
        }
    }

    fn option(&mut self, option: &Element) {
        let name = self.wanted(option, "name").to_owned();
        if let Some((_, why)) = IGNORED.iter().find(|(ignored, _)| *ignored == name) {
            return self.warn(option.line, format!("the option `{name}` is ignored"), *why);
        }
        match name.as_str() {
            "thinktime" => self.thinktime_option(option),
            "seed" => {
                self.options.seed = self.whole(option, "value", 0..=u64::MAX).or(self.options.seed)
            }
            "ports_range" => self.ports_range(option),
            "rate_limit" => self.options.read_rate_max = self.rate_limit(option),
            "file_server" | "local_file_server" => self.file_server(option),
            "global_number" => {
                let number = self.whole(option, "value", 1..=u64::MAX);
                self.options.global_number = number.unwrap_or(self.options.global_number);
            }
            "global_ack_timeout" => {
                self.options.global_timeout = self.milliseconds(option, "value")
            }
            "connect_timeout" | "idle_timeout" | "retry_timeout" => self.timeout(option, &name),
            "max_retries" => {
                let retries = self.whole_u32(option, "value");
                self.options.timeouts.retries = retries.unwrap_or(self.options.timeouts.retries);
            }
            "tcp_rcv_buffer" => {
                self.sources.receive_buffer_bytes = self.whole(option, "value", 1..=1 << 30)
            }
            "tcp_snd_buffer" => {
                self.sources.send_buffer_bytes = self.whole(option, "value", 1..=1 << 30)
            }
            "websocket_path"
            | "websocket_frame"
            | "websocket_subprotocols"
            | "websocket_origin" => {
                self.websocket_option(option, &name);
            }
            "" => {}
            _ => {
                let help =
                    "see the manual of Tsung, which ignores it too, for the names of options";
                let what = format!("the option `{name}` is not known and is ignored");
                self.warn(option.line_of("name"), what, help);
            }
        }
    }

    fn timeout(&mut self, option: &Element, name: &str) {
        let Some(time) = self.milliseconds(option, "value") else { return };
        let timeouts = &mut self.options.timeouts;
        match name {
            "connect_timeout" => timeouts.connect = time,
            "idle_timeout" => timeouts.reply = time,
            _ => timeouts.retry_wait = time,
        }
    }

    fn thinktime_option(&mut self, option: &Element) {
        if option.attribute("value").is_some() {
            self.options.thinktime.value = self.number(option, "value").unwrap_or_default();
        }
        self.options.thinktime.range = self.range(option);
        self.options.thinktime.random = is_true(option, "random");
        self.options.thinktime.replaces = is_true(option, "override");
        // A time that is too long is reported here, once.
        let value = self.options.thinktime.value;
        self.seconds(option, "value", value, unit_seconds(None));
    }

    pub(super) fn range(&mut self, element: &Element) -> Option<(f64, f64)> {
        if element.attribute("min").is_none() && element.attribute("max").is_none() {
            return None;
        }
        let (min, max) = (self.number(element, "min")?, self.number(element, "max")?);
        if min > max {
            let what = format!("`min` of <{}> is greater than `max`", element.name);
            self.wrong(element.line_of("min"), what, "");
        }
        self.seconds(element, "max", max, unit_seconds(None));
        Some((min, max))
    }

    fn ports_range(&mut self, option: &Element) {
        if option.value("value") == Some("off") {
            return;
        }
        let min = self.whole(option, "min", 1..=65_535).unwrap_or(1025);
        let max = self.whole(option, "max", 1..=65_535).unwrap_or(65_534);
        if min > max {
            self.wrong(option.line, format!("the option `ports_range`: {min} is above {max}"), "");
        }
        self.sources.ports = Some((min, max));
    }

    /// Kilobytes per second, as bytes.
    pub(super) fn rate_limit(&mut self, option: &Element) -> Option<u64> {
        self.ignore(option, "max", "there are no bursts above the rate");
        Some(self.whole(option, "value", 1..=u64::MAX >> 10).unwrap_or(512) * 1024)
    }

    fn file_server(&mut self, option: &Element) {
        let name = self.wanted(option, "value").to_owned();
        let line = option.line_of("value");
        let id = given(option, "id").unwrap_or("default").to_owned();
        let Ok(index) = u16::try_from(self.files.len()) else {
            return self.wrong(line, "there are more than 65,536 files", "");
        };
        if name.is_empty() {
            return;
        }
        if self.file_ids.contains_key(&id) {
            let what = format!("there are two files with the id `{id}`");
            return self.wrong(option.line_of("id"), what, "give each an `id` of its own");
        }
        let Some(bytes) = self.file(&name, line) else {
            // Added anyway, so that its users are not reported too.
            self.file_ids.insert(id, 0);
            return;
        };
        let rows = rows_of(&bytes);
        if rows.is_empty() {
            self.wrong(line, format!("the file {name} is empty"), "it needs a line at least");
        }
        let help = "remove it from the file unless it belongs to the values";
        if bytes.starts_with(b"\xef\xbb\xbf") {
            let what = format!("the file {name} begins with a byte order mark, which is sent");
            self.warn(line, what, help);
        }
        if rows.iter().any(|row| row.as_bytes().ends_with(b"\r")) {
            let what = format!("rows of the file {name} end with a carriage return, which is sent");
            self.warn(line, what, help);
        }
        self.files.push(DataFile { name: id.clone(), path: Some(name), rows });
        self.file_ids.insert(id, index);
    }

    fn websocket_option(&mut self, option: &Element, name: &str) {
        let value = option.value("value").unwrap_or_default().to_owned();
        if !self.servers.websocket {
            let what = format!("the option `{name}` is ignored");
            return self.warn(option.line, what, "no server has the type websocket");
        }
        let websocket = &mut self.options.websocket;
        match name {
            "websocket_path" => websocket.path = value,
            "websocket_subprotocols" => websocket.subprotocols = subprotocols(&value),
            "websocket_origin" => websocket.origin = Some(value).filter(|value| !value.is_empty()),
            _ => match value.as_str() {
                "binary" => websocket.binary = true,
                "text" => websocket.binary = false,
                _ => {
                    let what = format!("the option `websocket_frame` cannot be \"{value}\"");
                    self.wrong(option.line_of("value"), what, "one of: binary, text");
                }
            },
        }
    }

    fn http_option(&mut self, option: &Element) {
        match option.value("name").unwrap_or_default() {
            "user_agent" => self.user_agents(option),
            // Whatever its value, as in Tsung.
            "http_use_server_as_proxy" => self.options.proxy = true,
            name => {
                let what = format!("the option `{name}` of ts_http is not supported");
                self.wrong(
                    option.line_of("name"),
                    what,
                    "one of: user_agent, http_use_server_as_proxy",
                );
            }
        }
    }

    fn user_agents(&mut self, option: &Element) {
        let before = self.options.user_agents.len();
        for agent in option.children() {
            let Some(share) = self.number(agent, "probability") else { continue };
            let name = agent.texts().next().map(|(text, _)| text.trim().to_owned());
            match name {
                Some(name) => self.options.user_agents.push((name, share)),
                None => self.wrong(agent.line, "<user_agent> is empty", ""),
            }
        }
        let added = self.options.user_agents.get(before..).unwrap_or_default();
        let sum: f64 = added.iter().map(|agent| agent.1).sum();
        if (sum - 100.0).abs() >= 0.05 && self.diagnostics.is_empty() {
            let what = format!("the probabilities of the user agents add up to {sum}");
            self.wrong(option.line, what, "they must add up to 100");
        }
    }
}

/// The list, which is joined in the same way when it is sent: Tsung does not change it.
pub(super) fn subprotocols(text: &str) -> Vec<String> {
    text.split(", ").filter(|names| !names.is_empty()).map(ToOwned::to_owned).collect()
}
