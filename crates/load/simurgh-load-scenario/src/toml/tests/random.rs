//! Random scenarios with everything that the model has.

use std::time::Duration;

use crate::toml::tables::SPREADS;
use crate::*;

/// A different scenario with everything that the model has for each seed.
pub(crate) fn random_scenario(seed: u64) -> Scenario {
    Generator { rng: fastrand::Rng::with_seed(seed), vars: 0, files: 0 }.scenario()
}

struct Generator {
    rng: fastrand::Rng,
    vars: u16,
    files: u16,
}

impl Generator {
    fn scenario(&mut self) -> Scenario {
        self.vars = self.rng.u16(1..5);
        self.files = self.rng.u16(1..3);
        let targets = self.targets();
        let count = self.rng.usize(1..4);
        let sessions: Vec<_> = (0..count).map(|at| self.session(at, targets.len())).collect();
        let load = self.load(count);
        let range = self.range();
        Scenario {
            name: self.text(),
            seed: self.rng.u64(..),
            spread: self.rng.choice(&SPREADS).unwrap().1,
            sources: Sources {
                addresses: self.some(range).into_iter().collect(),
                ports: self.some((1025, 65_535)),
                receive_buffer_bytes: self.some(8192),
                send_buffer_bytes: self.some(1),
            },
            load,
            sessions,
            vars: (0..self.vars).map(|at| format!("{}{at}", self.text())).collect(),
            files: (0..self.files)
                .map(|at| DataFile {
                    name: format!("{}{at}", self.text()),
                    path: None,
                    rows: (0..self.rng.usize(0..3)).map(|_| self.text().into()).collect(),
                })
                .collect(),
            timeouts: Timeouts {
                connect: self.time(),
                reply: self.time(),
                retries: self.rng.u32(..),
                retry_wait: self.time(),
            },
            pass: self.pass(),
            agents: (0..self.rng.usize(0..2))
                .map(|_| Agent {
                    address: self.text(),
                    token: self.text(),
                    weight: self.number(),
                    addresses: vec![self.range()],
                })
                .collect(),
            tls: Tls {
                insecure: self.rng.bool(),
                roots_pem: self
                    .some("-----BEGIN CERTIFICATE-----\nA\n".to_owned())
                    .into_iter()
                    .collect(),
                identity_pem: self.some("-----BEGIN PRIVATE KEY-----".to_owned()),
            },
            user_agents: (0..self.rng.usize(0..3)).map(|_| (self.text(), self.number())).collect(),
            tsung: Some(TsungRun {
                version: self.some("1.0".to_owned()),
                full_stats: self.rng.bool(),
                proxy: self.rng.bool(),
                dump: *self
                    .rng
                    .choice(&[Dump::Off, Dump::Full, Dump::Light, Dump::Protocol])
                    .unwrap(),
            })
            .filter(|_| self.rng.bool()),
            targets,
        }
    }

    fn some<T>(&mut self, value: T) -> Option<T> {
        self.rng.bool().then_some(value)
    }

    fn range(&mut self) -> AddressRange {
        let first = std::net::Ipv4Addr::new(10, 0, 0, self.rng.u8(1..100));
        let last = std::net::Ipv4Addr::new(10, 0, self.rng.u8(..), 200);
        AddressRange {
            first: first.into(),
            last: if self.rng.bool() { first } else { last }.into(),
        }
    }

    /// Texts that are hard to quote.
    fn text(&mut self) -> String {
        let pieces = [
            "a", "user", "{{", "}}", "{", "}", "\"", "'", "\\", "\n", "\r", "\t", " ", "é",
            "\u{7f}", "\u{1}", "[0]", "]", "=", ">", "#", "stamp", "var", "%%", "\u{85}", "𝄞",
        ];
        (0..self.rng.usize(0..5)).map(|_| *self.rng.choice(&pieces).unwrap()).collect()
    }

    fn time(&mut self) -> Duration {
        match self.rng.u8(0..4) {
            0 => Duration::from_millis(self.rng.u64(0..100_000)),
            1 => Duration::from_nanos(self.rng.u64(..1 << 60)),
            _ => Duration::from_secs(self.rng.u64(0..10_000)),
        }
    }

    fn some_time(&mut self) -> Duration {
        self.time() + Duration::from_micros(1)
    }

    fn number(&mut self) -> f64 {
        match self.rng.u8(0..4) {
            0 => 1.0,
            1 => self.rng.f64() * 1e3,
            2 => self.rng.f64() * 1e20,
            _ => f64::from(self.rng.u16(..)),
        }
    }

    fn targets(&mut self) -> Vec<Target> {
        let mut targets: Vec<Target> = Vec::new();
        for _ in 0..self.rng.usize(1..4) {
            let target = self.target();
            // A server is only named once.
            if !targets.iter().any(|one| one.is_same(&target)) {
                targets.push(target);
            }
        }
        targets
    }

    fn target(&mut self) -> Target {
        let port = self.rng.u16(1..);
        let name = *self.rng.choice(&["127.0.0.1", "::1", "chat.invalid"]).unwrap();
        let ip = name.parse().unwrap_or(std::net::Ipv4Addr::LOCALHOST.into());
        Target {
            host: name.to_owned(),
            address: std::net::SocketAddr::new(ip, port),
            tls: self.rng.bool(),
            credentials: self.some("user:p%20w".to_owned()),
            weight: self.number(),
        }
    }

    fn load(&mut self, sessions: usize) -> Load {
        let phases = (0..self.rng.usize(0..3)).map(|at| self.phase(at, sessions)).collect();
        let at = self.time();
        let appointment = Appointment { at, session: self.rng.usize(..sessions) };
        Load {
            phases,
            appointments: self.some(appointment).into_iter().collect(),
            repeat: self.rng.u32(0..3),
            duration: Some(self.some_time()).filter(|_| self.rng.bool()),
            users_max: self.some(100),
            follow_stamps: *self
                .rng
                .choice(&[Follow::Nothing, Follow::Last, Follow::Exactly])
                .unwrap(),
        }
    }

    fn phase(&mut self, at: usize, sessions: usize) -> Phase {
        let arrivals = match self.rng.bool() {
            true => {
                Arrivals::Open { from: self.number(), to: self.number(), poisson: self.rng.bool() }
            }
            false => Arrivals::Closed { from: self.rng.u64(..1 << 40), to: 7 },
        };
        Phase {
            name: if self.rng.bool() { (at + 1).to_string() } else { self.text() },
            duration: self.time(),
            arrivals,
            users_max: self.some(5),
            wait_for_users: self.rng.bool(),
            hold: self.rng.bool(),
            weights: match self.rng.bool() {
                true => Vec::new(),
                false => {
                    (0..sessions).map(|_| Some(self.number()).filter(|_| self.rng.bool())).collect()
                }
            },
        }
    }

    fn pass(&mut self) -> Vec<Threshold> {
        let all = [
            ("join_p99", Compare::Lt, 50_000.0, "< 50ms"),
            ("errors", Compare::Eq, 0.0, "== 0"),
            ("errors", Compare::Lte, 5.0, "<= 5"),
            ("tr_odd name_p99.9", Compare::Neq, 3.0, "!= 3us"),
        ];
        let all = all.map(|(figure, compare, value, text)| Threshold {
            figure: figure.to_owned(),
            compare,
            value,
            text: text.to_owned(),
        });
        all.into_iter().take(self.rng.usize(0..=4)).collect()
    }

    fn session(&mut self, at: usize, targets: usize) -> Session {
        let dialect = self.dialect();
        let reconnect = Reconnect {
            min: self.time(),
            max: self.time(),
            attempts_max: self.some(3),
            rejoin: self.rng.bool(),
        };
        Session {
            name: format!("{}{at}", if self.rng.bool() { String::new() } else { self.text() }),
            weight: self.number(),
            dialect,
            transport: *self.rng.choice(&[Transport::WebSocket, Transport::LongPoll]).unwrap(),
            heartbeat: self.heartbeat(),
            rules: (0..self.rng.usize(0..3)).map(|_| self.rule()).collect(),
            reconnect: self.some(reconnect),
            drop: self.drop(),
            resume: self.rng.bool(),
            read_rate_max: self.some(64),
            steps: self.steps(targets, 0),
        }
    }

    fn heartbeat(&mut self) -> Option<Heartbeat> {
        let (every, send) = (self.some_time(), self.frame_out());
        let made = Heartbeat { every, send: self.some(send) };
        self.some(made)
    }

    fn rule(&mut self) -> AnswerRule {
        AnswerRule { when: self.matcher(), send: self.frame_out() }
    }

    fn frame_out(&mut self) -> FrameOut {
        FrameOut { data: self.template(), binary: self.rng.bool() }
    }

    fn drop(&mut self) -> Option<Drop> {
        let (shortest, more) = (self.time(), self.time());
        let made = Drop {
            every: self.some_time(),
            away: self.time(),
            how: *self.rng.choice(&[Cut::Reset, Cut::Silence, Cut::Both]).unwrap(),
            reconnect: (shortest, shortest + more),
            phase: None,
        };
        self.some(made)
    }

    fn dialect(&mut self) -> Dialect {
        let all =
            [Dialect::Raw, Dialect::Tsung, Dialect::Phoenix(Vsn::V1), Dialect::Phoenix(Vsn::V2)];
        *self.rng.choice(&all).unwrap()
    }

    fn steps(&mut self, targets: usize, depth: u32) -> Vec<Step> {
        let most = if depth > 2 { 1 } else { 6 };
        (0..self.rng.usize(0..most))
            .map(|_| Step { line: 0, act: self.act(targets, depth) })
            .collect()
    }

    fn var(&mut self) -> VarId {
        VarId(self.rng.u16(..self.vars))
    }

    fn template(&mut self) -> Template {
        self.template_within(0)
    }

    fn template_within(&mut self, depth: u32) -> Template {
        let mut template = Template::default();
        for _ in 0..self.rng.usize(0..4) {
            let part = match self.rng.u8(0..16) {
                0 => Part::Var(self.var()),
                1 => Part::Element(self.var(), self.rng.u32(..)),
                2 => Part::Value(Generated::UserId),
                3 => Part::Value(Generated::ReallyUniqueId),
                4 => Part::Value(Generated::RandomNumber(self.rng.i64(..0), self.rng.i64(0..))),
                5 => Part::Value(Generated::RandomString(self.rng.u32(..))),
                6 => Part::Value(Generated::Stamp),
                7 => Part::Value(Generated::NextLine(self.rng.u16(..self.files))),
                8 => Part::Value(Generated::RandomLine(self.rng.u16(..self.files))),
                9 => Part::Value(Generated::UnixTime),
                10 => Part::Value(Generated::TargetHost),
                11 => Part::Value(Generated::TargetPort),
                12 if depth < 3 => {
                    Part::Value(Generated::Md5(Box::new(self.template_within(depth + 1))))
                }
                13 => Part::Literal(vec![0xff, self.rng.u8(..), 0xc3]),
                _ => Part::Literal(self.text().into_bytes()),
            };
            template.push(part);
        }
        template
    }

    fn named(&mut self) -> Vec<(String, Template)> {
        (0..self.rng.usize(0..3)).map(|_| (self.text(), self.template())).collect()
    }

    fn matcher(&mut self) -> Matcher {
        let template = self.template();
        match self.rng.u8(0..7) {
            0 => Matcher::Any,
            1 => Matcher::Contains(template),
            2 => Matcher::Regex(template),
            6 => Matcher::Is(template),
            3 => Matcher::Json { path: self.text(), is: template },
            4 => {
                let topic = self.template();
                Matcher::Event { topic: self.some(topic), event: template }
            }
            _ => {
                let lists = [PresenceList::State, PresenceList::Joins, PresenceList::Leaves];
                let (topic, list) = (self.template(), *self.rng.choice(&lists).unwrap());
                Matcher::Presence { topic: self.some(topic), list, key: template }
            }
        }
    }

    fn think(&mut self) -> Think {
        let (from, more) = (self.time(), self.time());
        match self.rng.u8(0..4) {
            0 => Think::Constant(from),
            1 => Think::Uniform(from, from + more),
            2 => Think::Exponential(from),
            _ => Think::Var(self.var(), self.rng.bool()),
        }
    }

    fn answer(&mut self) -> Answer {
        Answer {
            timeout: Some(self.time()).filter(|_| self.rng.bool()),
            captures: (0..self.rng.usize(0..3)).map(|_| self.capture()).collect(),
            checks: (0..self.rng.usize(0..3)).map(|_| self.check()).collect(),
        }
    }

    fn capture(&mut self) -> Capture {
        let text = self.text();
        let from = match self.rng.u8(0..4) {
            0 => Find::Json(text),
            1 => Find::Regex(text),
            2 => Find::Header(text),
            _ => Find::FormField(text),
        };
        Capture { var: self.var(), from, decode_html: self.rng.bool() }
    }

    fn check(&mut self) -> Check {
        let times_max = self.rng.u32(..);
        let action = match self.rng.u8(0..7) {
            0 => Action::Continue,
            1 => Action::Log,
            2 => Action::Dump,
            3 => Action::Abort,
            4 => Action::AbortRun,
            5 => Action::Restart { times_max },
            _ => Action::Loop { times_max, sleep: self.time(), back: self.rng.u32(0..2) },
        };
        Check {
            name: if self.rng.bool() { "-".to_owned() } else { self.text() },
            pattern: self.template(),
            when_found: self.rng.bool(),
            action,
            skip_headers: self.rng.bool(),
        }
    }

    fn push(&mut self, has_event: bool) -> Push {
        let binary = self.rng.bool();
        let presence = self.template();
        let json = || Template { parts: vec![Part::Literal(b"{\"a\":\"'\\\\\"}".to_vec())] };
        Push {
            topic: self.template(),
            event: if has_event { self.template() } else { Template::default() },
            payload: if binary { self.template() } else { json() },
            binary,
            await_reply: self.rng.bool(),
            status: Some("ok".to_owned()).filter(|_| self.rng.bool()),
            presence: self.some(presence),
            answer: self.answer(),
        }
    }

    fn message(&mut self) -> Message {
        let reply = match self.rng.u8(0..3) {
            0 => Reply::None,
            1 => Reply::First,
            _ => Reply::Match(self.matcher()),
        };
        Message { data: self.template(), binary: self.rng.bool(), reply, answer: self.answer() }
    }

    fn http(&mut self) -> Http {
        let methods =
            ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "PROPFIND", "get", "OPTIONS"];
        let (body, user) = (self.template(), self.template());
        let auth = HttpAuth {
            digest: self.rng.bool(),
            password: user.clone(),
            realm: self.some(user.clone()),
            nonce: self.some(user.clone()),
            opaque: self.some(user.clone()),
            qop: self.some("auth".to_owned()),
            user,
        };
        Http {
            method: (*self.rng.choice(&methods).unwrap()).to_owned(),
            url: self.template(),
            version_1_0: self.rng.bool(),
            headers: self.named(),
            body: self.some(body),
            cookies: self.named(),
            auth: self.some(auth),
            status: [200, 404].into_iter().take(self.rng.usize(0..3)).collect(),
            answer: self.answer(),
        }
    }

    fn set(&mut self) -> Set {
        let several = vec![self.var(), self.var()];
        let one = vec![self.var()];
        match self.rng.u8(0..4) {
            0 => Set { vars: one, value: Value::Template(self.template()) },
            1 => {
                let value = Value::Row {
                    file: self.rng.u16(..self.files),
                    delimiter: self.text(),
                    random: self.rng.bool(),
                };
                Set { vars: several, value }
            }
            2 => Set { vars: one, value: Value::Json { from: self.var(), path: self.text() } },
            _ => Set { vars: several, value: Value::Target },
        }
    }

    fn bound(&mut self) -> Bound {
        match self.rng.bool() {
            true => Bound::Var(self.var()),
            false => Bound::Number(self.rng.i64(..)),
        }
    }

    fn condition(&mut self) -> Condition {
        let compares =
            [Compare::Eq, Compare::Neq, Compare::Gt, Compare::Gte, Compare::Lt, Compare::Lte];
        Condition {
            var: self.var(),
            element: self.some(3),
            compare: *self.rng.choice(&compares).unwrap(),
            value: self.template(),
        }
    }

    fn connect(&mut self) -> Connect {
        let (origin, offered) = (self.template(), self.rng.choice(&["chat", "v2.a+b"]).unwrap());
        Connect {
            path: self.template(),
            origin: self.some(origin),
            subprotocols: self.some((*offered).to_owned()).into_iter().collect(),
            headers: self.named(),
            answer: self.answer(),
        }
    }

    fn act(&mut self, targets: usize, depth: u32) -> Act {
        match self.rng.u8(0..25) {
            0 => Act::Connect(self.connect()),
            1 => Act::Send(self.message()),
            2 => Act::Raw(self.message()),
            3 => Act::Wait(Wait { matcher: self.matcher(), answer: self.answer() }),
            4 => {
                let (time, matcher) = (self.think(), self.matcher());
                Act::Receive(Receive {
                    time: self.some(time),
                    count: self.some(9),
                    matcher: self.some(matcher),
                })
            }
            5 => Act::Think(self.think()),
            6 => Act::Join(self.push(false)),
            7 => Act::Push(self.push(true)),
            8 => Act::Leave(self.push(false)),
            9 => Act::Http(Box::new(self.http())),
            10 => Act::Close { code: self.rng.u16(1000..5000) },
            11 => Act::Set(self.set()),
            12 => {
                let (var, every) = (self.var(), self.some_time());
                Act::For(For {
                    var: self.some(var),
                    from: self.bound(),
                    to: if self.rng.bool() { Bound::Endless } else { self.bound() },
                    step: self.rng.i64(..),
                    every: self.some(every),
                    at_least_once: self.rng.bool(),
                    steps: self.steps(targets, depth + 1),
                })
            }
            13 => Act::ForEach(ForEach {
                var: self.var(),
                list: self.var(),
                include: self.some("a".to_owned()),
                exclude: self.some("b".to_owned()),
                steps: self.steps(targets, depth + 1),
            }),
            14 => Act::Repeat(Repeat {
                name: self.text(),
                times_max: self.rng.u64(1..100),
                steps: self.steps(targets, depth + 1),
                condition: self.condition(),
                until: self.rng.bool(),
            }),
            15 => Act::If { condition: self.condition(), steps: self.steps(targets, depth + 1) },
            16 => Act::Transaction { name: self.text(), steps: self.steps(targets, depth + 1) },
            17 => Act::Switch(Switch {
                dialect: self.dialect(),
                target: self.rng.usize(..targets),
                store: self.rng.bool(),
                restore: self.rng.bool(),
            }),
            18 => {
                let timeout = self.time();
                Act::Gather { users: self.rng.u64(1..9), timeout: self.some(timeout) }
            }
            19 => Act::InteractionSend { id: self.text() },
            20 => Act::InteractionReceive { id: self.text() },
            21 => Act::WaitServer,
            22 => Act::Abort,
            23 => Act::AbortRun,
            _ => Act::Close { code: 1000 },
        }
    }
}
