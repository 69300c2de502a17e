//! `<sessions>` and `<session>`.

use simurgh_load_scenario::{
    Act, Connect, Dialect, Generated, Part, Session, Set, Step, Template, Value,
};

use super::Lower;
use crate::xml::Element;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    WebSocket,
    Http,
    Raw,
}

impl Kind {
    pub(super) fn of(name: &str) -> Option<Self> {
        match name {
            "ts_websocket" => Some(Self::WebSocket),
            "ts_http" => Some(Self::Http),
            "ts_raw" => Some(Self::Raw),
            _ => None,
        }
    }

    /// The element of its requests.
    pub(super) fn element(self) -> &'static str {
        match self {
            Self::WebSocket => "websocket",
            Self::Http => "http",
            Self::Raw => "raw",
        }
    }
}

/// Why `bidi` has no effect.
pub(super) const BIDI: &str = "what the server sends is always read, and pings are answered";
pub(super) const KINDS: &str = "ts_websocket, ts_http, ts_raw";

/// The state of all sessions, and of the current one.
#[derive(Default)]
pub(super) struct SessionState {
    by_weight: Option<bool>,
    /// The line of `<sessions>`.
    pub(super) line: u32,
    pub(super) kind: Option<Kind>,
    /// Scheme and server of the last whole URL that goes to a proxy.
    pub(super) server: Option<String>,
    pub(super) read_rate_max: Option<u64>,
    /// The line of a certificate in the session.
    pub(super) certificate: Option<u32>,
}

impl Lower<'_> {
    pub(super) fn sessions(&mut self, root: &Element) -> Vec<Session> {
        let (line, elements) = root.within("sessions");
        let sessions: Vec<Session> = elements.iter().filter_map(|it| self.session(it)).collect();
        if elements.is_empty() {
            self.wrong(line, "there is no <session>", "put a <session> into <sessions>");
        }
        self.session.line = line;
        sessions
    }

    fn session(&mut self, element: &Element) -> Option<Session> {
        let name = self.wanted(element, "name").to_owned();
        let share = self.share(element);
        let kind = element.value("type").unwrap_or_default();
        let Some(kind) = Kind::of(kind) else {
            let what = format!("<session> `{name}` has the type {kind}, which is not supported");
            return self.refuse(element.line_of("type"), what, format!("one of: {KINDS}"));
        };
        self.ignore(element, "bidi", BIDI);
        self.ignore(element, "persistent", "connections stay open until the server closes them");
        if self.servers.websocket && kind != Kind::WebSocket {
            let what =
                format!("<session> `{name}`: servers of type websocket take only ts_websocket");
            self.wrong(element.line_of("type"), what, "give the server the type tcp or ssl");
        }
        self.session.kind = Some(kind);
        self.session.server = None;
        self.session.read_rate_max = self.options.read_rate_max;
        self.vars.user_id_wanted = false;
        let mut steps = self.steps(element);
        self.implied_connect(element, &mut steps);
        self.user_id(element, &mut steps);
        Some(Session {
            name,
            weight: share.unwrap_or_default(),
            dialect: Dialect::Tsung,
            read_rate_max: self.session.read_rate_max,
            steps,
            ..Session::default()
        })
    }

    /// Servers of type `websocket` need a handshake before the first message.
    fn implied_connect(&mut self, element: &Element, steps: &mut Vec<Step>) {
        let Some(first) = first_websocket(element) else { return };
        if first.value("type") == Some("connect") {
            return;
        }
        if !self.servers.websocket {
            let what = "<websocket> comes before a connect";
            let help = "put <websocket type=\"connect\" path=\"/\"/> before it";
            return self.warn(first.line, what, help);
        }
        let options = &self.options.websocket;
        let connect = Connect {
            path: Template::literal(&options.path),
            origin: options.origin.as_deref().map(Template::literal),
            subprotocols: options.subprotocols.clone(),
            ..Connect::default()
        };
        steps.insert(0, Step { line: element.line, act: Act::Connect(connect) });
    }

    /// Sets `tsung_userid` as a variable if a step reads it as one.
    fn user_id(&mut self, element: &Element, steps: &mut Vec<Step>) {
        if !self.vars.user_id_wanted {
            return;
        }
        let var = self.var_set(super::variables::USER_ID, element.line);
        let value = Value::Template(Part::Value(Generated::UserId).into());
        let set = Set { vars: vec![var], value };
        steps.insert(0, Step { line: element.line, act: Act::Set(set) });
    }

    /// The probability or the weight of a session; a file has only one of the two kinds.
    pub(super) fn share(&mut self, element: &Element) -> Option<f64> {
        let both = (element.attribute("probability"), element.attribute("weight"));
        let (name, by_weight) = match both {
            (Some(_), None) => ("probability", false),
            (None, Some(_)) => ("weight", true),
            _ => return self.one_of(element, "probability", "weight"),
        };
        if *self.session.by_weight.get_or_insert(by_weight) != by_weight {
            let what = format!("<{}> has a `{name}`, where others have the other", element.name);
            let help = "either weights or probabilities in all the file";
            self.wrong(element.line_of(name), what, help);
        }
        self.number(element, name)
    }

    /// Probabilities must add up to 100, weights to more than 0.
    pub(super) fn check_shares(&mut self, sum: f64, line: u32, of: &str) {
        let sum = (sum * 1e6).round() / 1e6;
        if self.session.by_weight == Some(true) {
            if sum <= 0.0 {
                self.wrong(line, format!("all sessions {of}have the weight 0"), "");
            }
        } else if (sum - 100.0).abs() >= 0.05 {
            let what = format!("the probabilities of the sessions {of}add up to {sum}");
            self.wrong(line, what, "they must add up to 100");
        }
    }
}

/// The first `<websocket>` of a session, at any depth.
fn first_websocket(element: &Element) -> Option<&Element> {
    element.children().find_map(|child| match child.name.as_str() {
        "websocket" => Some(child),
        _ => first_websocket(child),
    })
}
