//! `<request>`, `<match>`, `<websocket>` and `<raw>`.

use std::time::Duration;

use simurgh_load_scenario::answer::CompiledCheck;
use simurgh_load_scenario::{
    Act, Action, Answer, Check, Connect, Diagnostic, Matcher, Message, Part, Reply, Step, Template,
};

use super::options::subprotocols;
use super::{Lower, given};
use crate::repair::json_quotes;
use crate::xml::Element;

/// Maximum of a `datasize` in bytes.
const DATA_BYTES_MAX: u64 = 16 << 20;

/// Where a request has placeholders.
#[derive(Clone, Copy)]
pub(super) struct Subst {
    pub(super) head: bool,
    pub(super) body: bool,
}

impl Lower<'_> {
    pub(super) fn request(&mut self, element: &Element, steps: &mut Vec<Step>) {
        let tag = given(element, "tag");
        if tag.is_some_and(|tag| self.overrides.exclude_tags.iter().any(|x| x == tag)) {
            return;
        }
        let subst = match element.value("subst") {
            Some("true") => Subst { head: true, body: true },
            Some("all_except_body") => Subst { head: true, body: false },
            _ => Subst { head: false, body: false },
        };
        let mut answer = Answer::default();
        let mut found: Option<&Element> = None;
        for child in element.children() {
            match child.name.as_str() {
                "match" => answer.checks.extend(self.check(child)),
                "dyn_variable" => answer.captures.extend(self.capture(child)),
                _ if found.is_some() => {
                    self.wrong(child.line, "<request> holds two requests", "give each its own");
                }
                _ => found = Some(child),
            }
        }
        let Some(inner) = found else {
            let help = "put a <websocket> or <http> into it";
            return self.wrong(element.line, "<request> is empty", help);
        };
        let name = inner.name.as_str();
        if !matches!(name, "websocket" | "http" | "raw") {
            let help = "requests can be: websocket, http, raw";
            return self.wrong(inner.line, format!("<{name}> is not supported"), help);
        }
        if let Some(kind) = self.session.kind.filter(|kind| kind.element() != name) {
            let what = format!("<{name}> is in a session of <{}>", kind.element());
            let help = "the session's type, or a <change_type> before it, decides the protocol";
            return self.wrong(inner.line, what, help);
        }
        match name {
            "websocket" => self.websocket(inner, subst, answer, steps),
            "http" => self.http(inner, subst, answer, steps),
            _ => self.raw(inner, subst, answer, steps),
        }
    }

    fn check(&mut self, element: &Element) -> Option<Check> {
        let line = element.line;
        let text: &str =
            element.texts().next().map_or("", |(text, _)| text.trim_matches(['\n', ' ']));
        if text.is_empty() {
            return self.refuse(line, "<match> is empty", "put a regular expression into it");
        }
        if given(element, "apply_to_content").is_some() {
            let what = "`apply_to_content` of <match> is not supported";
            let line = element.line_of("apply_to_content");
            return self.refuse(line, what, "Erlang code cannot be run");
        }
        let skip_headers = match element.value("skip_headers").unwrap_or("no") {
            "no" => false,
            "http" => true,
            other => {
                let what = format!("`skip_headers` of <match> cannot be \"{other}\"");
                return self.refuse(element.line_of("skip_headers"), what, "one of: no, http");
            }
        };
        let pattern = self.text_template(text, element.value("subst") == Some("true"), line);
        let count = |lower: &mut Self, name: &str, default: u32| {
            lower.whole_u32(element, name).unwrap_or(default)
        };
        let action = match element.value("do").unwrap_or("continue") {
            "log" => Action::Log,
            "dump" => Action::Dump,
            "abort" => Action::Abort,
            "abort_test" => Action::AbortRun,
            "restart" => Action::Restart { times_max: count(self, "max_restart", 3) },
            "loop" => Action::Loop {
                times_max: count(self, "max_loop", 20),
                sleep: Duration::from_secs(count(self, "sleep_loop", 5).into()),
                back: count(self, "loop_back", 0),
            },
            _ => Action::Continue,
        };
        let when_found = element.value("when").unwrap_or("match") == "match";
        let name = given(element, "name").unwrap_or("-").to_owned();
        let check = Check { name, pattern, when_found, action, skip_headers };
        if let Err(what) = CompiledCheck::new(&check) {
            self.wrong(line, format!("<match>: {what}"), "");
        }
        Some(check)
    }

    fn websocket(
        &mut self,
        element: &Element,
        subst: Subst,
        answer: Answer,
        steps: &mut Vec<Step>,
    ) {
        let line = element.line;
        let kind = element.value("type").unwrap_or_default();
        if kind != "message" {
            if let Some((_, line)) = element.texts().next() {
                self.wrong(line, format!("<websocket> of type {kind} can hold no text"), "");
            }
            for name in ["ack", "frame"] {
                self.ignore(element, name, "it holds for messages");
            }
        }
        if kind != "connect" {
            for name in ["path", "origin", "subprotocols"] {
                self.ignore(element, name, "it holds for the connect");
            }
            if let Some(header) = element.children().next() {
                self.wrong(header.line, "<http_header> belongs into a connect", "");
            }
        }
        match kind {
            "connect" => {
                let act = Act::Connect(self.connect(element, subst, answer));
                steps.push(Step { line, act });
            }
            "close" => {
                if !answer.checks.is_empty() || !answer.captures.is_empty() {
                    let what = "<match> and <dyn_variable> of a close are ignored";
                    self.warn(line, what, "nothing comes after a close");
                }
                // Tsung's close frame has the word `close` instead of the code.
                steps.push(Step { line, act: Act::Close { code: 1000 } });
            }
            _ => self.message(element, subst, answer, steps),
        }
    }

    fn connect(&mut self, element: &Element, subst: Subst, answer: Answer) -> Connect {
        let path = element.value("path").unwrap_or("/");
        let path = self.template(path, subst.head, element.line_of("path"));
        let websocket = &self.options.websocket;
        let origin = given(element, "origin").map(ToOwned::to_owned);
        let origin = origin.or_else(|| websocket.origin.clone());
        let subprotocols = match given(element, "subprotocols") {
            Some(names) => subprotocols(names),
            None => websocket.subprotocols.clone(),
        };
        let origin = origin.map(|o| self.template(&o, subst.head, element.line_of("origin")));
        let headers = self.headers(element, subst);
        Connect { path, origin, subprotocols, headers, answer, ..Connect::default() }
    }

    fn message(&mut self, element: &Element, subst: Subst, answer: Answer, steps: &mut Vec<Step>) {
        let line = element.line;
        let binary = match element.value("frame") {
            Some(frame) => frame == "binary",
            None => self.options.websocket.binary,
        };
        let data = self.payload(element, subst, binary);
        let ack = element.value("ack").unwrap_or("parse");
        let reply = match ack {
            "no_ack" => Reply::None,
            "match" => match self.reply_match(element, &answer) {
                Some(matcher) => Reply::Match(matcher),
                None => return,
            },
            _ => Reply::First,
        };
        self.no_answer(element, &reply, &answer);
        steps.push(Step { line, act: Act::Send(Message { data, binary, reply, answer }) });
        if ack == "global" {
            steps.push(Step { line, act: self.gather() });
        }
    }

    /// Our `ack="match"`: the reply is the frame in which the first `<match>` finds something.
    fn reply_match(&mut self, element: &Element, answer: &Answer) -> Option<Matcher> {
        let line = element.line_of("ack");
        let Some(check) = answer.checks.iter().find(|check| check.when_found) else {
            let what = "`ack` is \"match\", and there is no <match> that recognizes the reply";
            return self.refuse(line, what, "put <match>..</match> before the <websocket>");
        };
        if check.pattern.constant().is_none() {
            let what = "`ack` is \"match\", and the <match> has variables in it";
            return self.refuse(line, what, "a fixed regular expression recognizes the reply");
        }
        Some(Matcher::Regex(check.pattern.clone()))
    }

    fn no_answer(&mut self, element: &Element, reply: &Reply, answer: &Answer) {
        let asked = !answer.checks.is_empty() || !answer.captures.is_empty();
        if *reply == Reply::None && asked {
            let what = "<match> and <dyn_variable> are ignored where `ack` is \"no_ack\"";
            self.warn(element.line, what, "the user waits for no answer");
        }
    }

    /// The first text; outer blanks are removed, line breaks are kept.
    fn payload(&mut self, element: &Element, subst: Subst, binary: bool) -> Template {
        let mut texts = element.texts();
        let Some((text, line)) = texts.next() else {
            self.warn(element.line, "<websocket> sends an empty message", "");
            return Template::default();
        };
        if let Some((_, line)) = texts.next() {
            let what = "the text after a comment or an element is not sent";
            self.warn(line, what, "Tsung sends the first text only");
        }
        let text = text.trim_matches(' ');
        let straight = json_quotes(text);
        if straight.is_some() {
            let diagnostic = Diagnostic::at(line, "the JSON has curly quotes");
            self.warnings.push(diagnostic.help("repaired"));
        }
        let text = straight.as_deref().unwrap_or(text);
        if binary {
            return self.template(text, subst.body, line);
        }
        if !text.is_ascii() {
            let what = "letters other than ASCII in a text frame are sent in UTF-8";
            self.warn(line, what, "Tsung sends Latin-1, which no server takes there");
        }
        self.text_template(text, subst.body, line)
    }

    fn raw(&mut self, element: &Element, subst: Subst, answer: Answer, steps: &mut Vec<Step>) {
        let line = element.line;
        let data = match element.value("datasize") {
            Some(size) if size.contains("%%") => {
                let what = "`datasize` of <raw> with a variable in it is not supported";
                let line = element.line_of("datasize");
                return self.wrong(line, what, "write a number, or use `data`");
            }
            Some(size) if !size.is_empty() => {
                let size = self.whole(element, "datasize", 1..=DATA_BYTES_MAX);
                Part::Literal(vec![0; size.unwrap_or_default()]).into()
            }
            _ => {
                let data = self.wanted(element, "data").to_owned();
                self.template(&data, subst.body, element.line_of("data"))
            }
        };
        let ack = element.value("ack").unwrap_or("no_ack");
        let reply = if ack == "no_ack" { Reply::None } else { Reply::First };
        self.no_answer(element, &reply, &answer);
        let message = Message { data, binary: true, reply, answer };
        steps.push(Step { line, act: Act::Raw(message) });
        if ack == "global" {
            steps.push(Step { line, act: self.gather() });
        }
    }
}
