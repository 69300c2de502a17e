//! Connects: the token decides if there is one, else the question `connect`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use simurgh_channel::{AskFn, Decision, SocketState};
use simurgh_hooks::{Answer, Asked, CacheInputs, ConnectAnswer, Kind, Question, Refusal, Verdict};
use simurgh_proto::topic::Pattern;

use super::question::{Subject, cache_key};
use super::refresh::Entry;
use super::{Asking, Client, HookSet, HookedSocket};
use crate::connect::{Connect, ConnectInfo, ConnectKind};
use crate::token::{Claims, TokenPolicy};

/// The longest token that is a part of a question, bytes.
const TOKEN_BYTES_MAX: usize = 8 << 10;

/// Decides the connects of a user socket.
pub(crate) struct Connects {
    set: Arc<HookSet>,
    /// Decides for clients with a token.
    tokens: Option<Arc<TokenPolicy>>,
}

impl Connects {
    pub(crate) fn new(set: Arc<HookSet>, tokens: Option<Arc<TokenPolicy>>) -> Self {
        let of = tokens.clone();
        set.identify_by(Arc::new(move |answer| {
            id_of(answer, claims_of(answer).as_ref(), of.as_deref())
        }));
        Self { set, tokens }
    }

    pub(crate) fn decide(self: &Arc<Self>, info: &ConnectInfo<'_>) -> Connect {
        let client = self.client(info);
        let hook = self.set.specs.iter().position(|spec| spec.asks_connect);
        match (&self.tokens, hook) {
            (Some(tokens), None) => self.by_token(tokens.connect(info), client),
            (Some(tokens), Some(_)) if info.token().is_some() || !tokens.is_optional() => {
                self.by_token(tokens.connect(info), client)
            }
            (_, Some(hook)) => self.ask(hook, info, client),
            (None, None) => Self::admit(None, client, Connect::ok()),
        }
    }

    /// The client as its upgrade shows it; an answer may add topics.
    fn client(&self, info: &ConnectInfo<'_>) -> Client {
        let specs = self.set.specs.iter();
        let traceparent = info.request.header("traceparent").map(<[u8]>::to_vec);
        let traceparent = traceparent.or_else(|| info.param("traceparent").map(String::into_bytes));
        Client {
            set: Arc::clone(&self.set),
            connection: info.connection.as_deref().map(Into::into),
            ip: info.peer.ip().to_canonical(),
            limits: None,
            topics: Box::default(),
            forwarded: specs.map(|spec| spec.forward.of(info.request)).collect(),
            traceparent: traceparent.and_then(|value| http::HeaderValue::try_from(value).ok()),
        }
    }

    /// A token has decided: its claims are the identity of later questions.
    fn by_token(self: &Arc<Self>, connect: Connect, client: Client) -> Connect {
        match connect.0 {
            ConnectKind::Ok(SocketState { assigns, id, lifetime }) => {
                let claims = assigns.and_then(|assigns| assigns.downcast::<Claims>().ok());
                let state = SocketState { assigns: None, id, lifetime };
                Self::admit(claims, client, Connect(ConnectKind::Ok(state)))
            }
            ConnectKind::Later(decision) => {
                let this = Arc::clone(self);
                let decided = decision.map(move |connect| this.by_token(connect, client));
                Connect(ConnectKind::Later(decided))
            }
            refused @ ConnectKind::Refuse { .. } => Connect(refused),
        }
    }

    fn admit(claims: Option<Arc<Claims>>, client: Client, connect: Connect) -> Connect {
        connect.assign(HookedSocket { claims, asker: Arc::new(client) })
    }

    fn ask(self: &Arc<Self>, hook: usize, info: &ConnectInfo<'_>, client: Client) -> Connect {
        let asking = Asking { claims: None, client: &client };
        match self.set.ask(hook, question(hook, info, &asking)) {
            Asked::Now(verdict) => self.decided(hook, verdict, client),
            Asked::Later(question) => {
                let (this, data) = (Arc::clone(self), data(info, &asking));
                let ask: AskFn<Connect> = Box::new(move |done| {
                    let reply = move |verdict| done(this.decided(hook, verdict, client));
                    Box::new(question.send(data, reply))
                });
                Connect(ConnectKind::Later(Decision::Call(ask)))
            }
        }
    }

    fn decided(&self, hook: usize, verdict: Verdict, client: Client) -> Connect {
        let answer = match verdict {
            Verdict::Allowed(answer) => answer,
            Verdict::Refused(refusal) => return refuse(&refusal),
            Verdict::Failed(failure) if failure.allows => {
                return Self::admit(None, client, Connect::ok());
            }
            Verdict::Failed(_) => return Connect::refuse_with(503, "unavailable\n"),
        };
        let Answer::Connect(answer) = &*answer else {
            return Connect::refuse_with(503, "unavailable\n");
        };
        let claims = claims_of(answer);
        let id = id_of(answer, claims.as_ref(), self.tokens.as_deref());
        let limits = answer.limits.as_deref().map(Into::into);
        let client = Client { limits, topics: patterns(answer), ..client };
        let socket = HookedSocket { claims: claims.map(Arc::new), asker: Arc::new(client) };
        let mut state = SocketState { id: id.map(Into::into), ..SocketState::default() };
        let socket = Arc::new(socket);
        if let Some(expires_at) = answer.expires_at {
            state.lifetime = Some(time_until(expires_at).into());
            if self.set.specs.get(hook).is_some_and(|spec| spec.asks_refresh) {
                self.set.running.refreshes.add(Entry {
                    socket: Arc::downgrade(&socket),
                    id: state.id.clone(),
                    hook,
                    granted: Duration::from_secs(expires_at.saturating_sub(unix_s())),
                    expires_at,
                    stale_for: answer.stale_for,
                });
            }
        }
        state.assigns = Some(socket);
        Connect(ConnectKind::Ok(state))
    }
}

/// The id of a socket with this answer and its claims, if it names none as for a token's.
fn id_of(
    answer: &ConnectAnswer,
    claims: Option<&Claims>,
    tokens: Option<&TokenPolicy>,
) -> Option<String> {
    if answer.id.is_some() {
        return answer.id.clone();
    }
    let claims = claims?;
    match tokens {
        Some(tokens) => tokens.id_of(claims),
        None => Some(format!("user_socket:{}", claims.subject()?)),
    }
}

/// An answer is equal to a token: its user is the subject, and rules see the same claims.
fn claims_of(answer: &ConnectAnswer) -> Option<Claims> {
    if answer.user.is_none() && answer.claims.is_empty() {
        return None;
    }
    let (user, now_s) = (answer.user.as_deref(), unix_s());
    Some(Claims::granted(user, &answer.claims, Some(now_s), answer.expires_at))
}

/// The topics of an answer that need no question.
pub(super) fn patterns(answer: &ConnectAnswer) -> Box<[Pattern]> {
    answer.topics.iter().filter_map(|text| Pattern::parse(text).ok()).collect()
}

pub(super) fn unix_s() -> u64 {
    since_epoch().as_secs()
}

/// As for a token, the whole second of the expiry counts as before it.
pub(super) fn time_until(expires_at: u64) -> Duration {
    Duration::from_secs(expires_at.saturating_add(1)).saturating_sub(since_epoch())
}

pub(super) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn refuse(refusal: &Refusal) -> Connect {
    Connect::refuse_with(403, format!("{}\n", refusal.reason))
}

/// A question about a connect with these inputs, whose answer is cached.
fn question(hook: usize, info: &ConnectInfo<'_>, asking: &Asking<'_>) -> Question {
    let question = asking.question(Kind::Connect, hook);
    // The answer does not depend on these, and a trace is new in each connect.
    let mut params = info.params();
    if let Some(params) = params.as_object_mut() {
        params.retain(|name, _| name != "vsn" && name != "traceparent");
    }
    let path = info.request.path();
    let key = [path, origin(info).unwrap_or_default(), token(info).unwrap_or_default()];
    let mut key: Vec<Vec<u8>> = key.into_iter().map(|part| part.as_bytes().to_vec()).collect();
    key.push(params.to_string().into_bytes());
    key.push(cache_key(&question.forwarded));
    let cache = Some(Box::new(CacheInputs { key, user: None, id: None }));
    Question { cache, ..question }
}

fn data(info: &ConnectInfo<'_>, asking: &Asking<'_>) -> Box<str> {
    let subject = Subject::Connect {
        path: info.request.path(),
        params: &info.params(),
        origin: origin(info),
        transport: info.transport.name(),
        token: token(info),
    };
    asking.data(None, subject).text()
}

fn origin<'a>(info: &ConnectInfo<'a>) -> Option<&'a str> {
    info.request.header("origin").and_then(|value| std::str::from_utf8(value).ok())
}

fn token<'a>(info: &ConnectInfo<'a>) -> Option<&'a str> {
    info.auth_token.filter(|token| token.len() <= TOKEN_BYTES_MAX)
}
