//! The scenarios of `simurgh load`, written for each run.

use std::net::SocketAddrV4;
use std::time::Duration;

/// Tsung's file of the 2015 Phoenix benchmark, which is beside the tests of `simurgh load`.
pub(super) const SEED_FILE: &str =
    include_str!("../../../crates/load/simurgh-load/tests/tsung/phoenix.xml");
/// The server's name in that file, without the port.
pub(super) const SEED_SERVER: &str = "server_ip_address";

/// The head of a TOML scenario; `more` are further keys.
fn toml(server: SocketAddrV4, seed: usize, more: &str) -> String {
    format!("name = \"bench\"\nseed = {seed}\n{more}\n[target]\nurl = \"ws://{server}\"\n")
}

fn phase(duration: &str, rate: u32, more: &str) -> String {
    format!("[[phase]]\nduration = \"{duration}\"\nrate = {rate}\n{more}")
}

fn session(name: &str, steps: &str) -> String {
    format!("[[session]]\nname = \"{name}\"\nprotocol = \"phoenix\"\nsteps = [\n{steps}\n]\n")
}

/// Steps that connect and join.
const JOIN: &str = "{ connect = \"/socket/websocket\" },\n\
     { join = \"rooms:lobby\", payload = { user = \"b\" } },\n";

/// The pause in which no users come, so that the memory of an idle process can be read; long enough
/// that files written every 10 s have been written once before.
pub(super) const PAUSE: Duration = Duration::from_secs(8);

/// After 2 s without users, users come at `rate` and stay; a pause follows the first `first`.
pub(super) fn hold(server: SocketAddrV4, users: usize, rate: u32, first: usize) -> String {
    let come = |users| phase(&format!("{}ms", milliseconds(users, rate)), rate, "");
    let pause = phase(&format!("{}s", PAUSE.as_secs()), 0, "");
    // The first take as long as all others: both figures have as many seconds with arrivals.
    let all_others = milliseconds(users - first, rate).max(1);
    let slowly = u32::try_from((first as u64 * 1000).div_ceil(all_others)).unwrap_or(rate);
    let early = match first {
        0 => String::new(),
        _ => {
            let cap = format!("max_users = {first}\n");
            phase(&format!("{all_others}ms"), slowly, &cap) + &pause
        }
    };
    let steps = format!("{JOIN}{{ receive = \"end\" }},");
    format!(
        "{}{}{early}{}{}{}",
        toml(server, 1, &format!("max_users = {users}")),
        phase("2s", 0, ""),
        come(users - first),
        phase("10m", 0, ""),
        session("member", &steps)
    )
}

/// Time in which `users` come at `rate`.
fn milliseconds(users: usize, rate: u32) -> u64 {
    let users = u64::try_from(users).unwrap_or(u64::MAX);
    users.saturating_mul(1000).div_ceil(u64::from(rate.max(1)))
}

/// Messages of one member of `rooms:lobby`.
#[derive(Clone, Copy)]
pub(super) struct Messages {
    /// All members, including the publisher.
    pub(super) members: usize,
    pub(super) rate: u32,
    pub(super) messages: u32,
}

/// Members come, then the publisher, three seconds before its first message.
pub(super) fn broadcasts(server: SocketAddrV4, plan: Messages) -> String {
    let listeners = plan.members.saturating_sub(1);
    let every = 1_000_000 / plan.rate.max(1);
    let words = format!(
        "{JOIN}{{ receive = \"3s\" }},\n{{ loop = {}, every = \"{every}us\", steps = [{{ push = \
         \"new:msg\", payload = {{ body = \"{{{{stamp}}}}\" }}, reply = false }}] }},\n\
         {{ receive = \"end\" }},",
        plan.messages
    );
    let length = 7 + plan.messages.div_ceil(plan.rate.max(1));
    format!(
        "{}{}{}{}{}{}{}",
        toml(server, 1, ""),
        phase("2s", 0, ""),
        phase(&format!("{}ms", milliseconds(listeners, 1000)), 1000, "weights = { talker = 0 }\n"),
        phase("1s", 1, "weights = { listener = 0 }\n"),
        phase(&format!("{length}s"), 0, ""),
        session("listener", &format!("{JOIN}{{ receive = \"end\" }},")),
        session("talker", &words),
    )
}

/// Rooms of ten in which all publish: `rate` messages per second in all, evenly, for `seconds`.
pub(super) fn rooms(server: SocketAddrV4, members: usize, rate: u32, seconds: u32) -> String {
    let count = members / ROOM;
    let names: Vec<String> = (0..count).map(|room| format!("\"{room}\"")).collect();
    let members_32 = u32::try_from(members).unwrap_or(u32::MAX);
    let every = u64::from(members_32) * 1_000_000 / u64::from(rate.max(1));
    let rounds = u64::from(seconds) * 1_000_000 / every.max(1);
    let steps = format!(
        "{{ connect = \"/socket/websocket\" }},\n{{ set = \"room\", row = \"rooms\" }},\n\
         {{ join = \"rooms:{{{{room}}}}\", payload = {{ user = \"b\" }} }},\n\
         {{ receive = \"4s\" }},\n{{ loop = {rounds}, every = \"{every}us\", steps = [{{ push = \
         \"new:msg\", payload = {{ body = \"{{{{stamp}}}}\" }}, reply = false }}] }},\n\
         {{ receive = \"2s\" }},"
    );
    format!(
        "{}{}{}{}",
        toml(server, 1, &format!("[files]\nrooms = [{}]", names.join(", "))),
        phase("1s", members_32, ""),
        phase(&format!("{}s", seconds + 8), 0, ""),
        session("member", &steps)
    )
}

/// Members of a room of [`rooms`].
pub(super) const ROOM: usize = 10;

/// Users that come for ten seconds, stay for a moment and leave.
pub(super) fn arrivals(server: SocketAddrV4, rate: u32, poisson: bool, seed: usize) -> String {
    let kind = if poisson { "arrivals = \"poisson\"\n" } else { "" };
    let steps = "{ connect = \"/\" }, { think = \"200ms\" }, { close = true },";
    format!(
        "{}{}{}",
        toml(server, seed, ""),
        phase("10s", rate, kind),
        session("guest", steps).replace("\"phoenix\"", "\"raw\"")
    )
}

/// One user that sends 50 requests a second for ten seconds.
pub(super) fn asks(server: SocketAddrV4) -> String {
    let steps = "{ connect = \"/\" },\n{ loop = 500, every = \"20ms\", steps = [\
         { send = \"hello\", reply = true }] },";
    format!(
        "{}{}{}",
        toml(server, 1, "max_users = 1"),
        phase("1s", 1, ""),
        session("asker", steps).replace("\"phoenix\"", "\"raw\"")
    )
}

/// 50 users a second for ten seconds, each with one request.
pub(super) fn requests(server: SocketAddrV4) -> String {
    format!(
        "{}{}{}",
        toml(server, 1, "").replace("ws://", "http://"),
        phase("10s", 50, ""),
        session("visitor", "{ get = \"/\" },").replace("\"phoenix\"", "\"raw\"")
    )
}
