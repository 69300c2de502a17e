//! Several servers: where connections go, what users of a lost one do, and the report of each.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use crate::outside::{Peer, Ran, Server, run_with};
use simurgh_load::fleet::Agent;
use simurgh_load::record::{Count, ErrorKind as E, OfServer};

/// A V2 server that answers everything with `ok`, but hangs up if a message asks for it.
fn channels(mut peer: Peer) {
    peer.channels(|_, message| message[3] != "hang_up");
}

fn three() -> [Server; 3] {
    [(); 3].map(|()| Server::new(channels))
}

fn targets(servers: &[SocketAddr]) -> String {
    servers.iter().map(|addr| format!("[[target]]\nurl = \"ws://{addr}\"\n")).collect()
}

/// `users` in 200 ms, each with these steps.
fn scenario(head: &str, servers: &[SocketAddr], users: u32, session: &str) -> String {
    let rate = users * 5;
    format!(
        "{head}\n{}[[phase]]\nduration = \"200ms\"\nrate = {rate}\n\
         [[session]]\nname = \"one\"\n{session}\n",
        targets(servers)
    )
}

const BACK: &str = "protocol = \"phoenix\"\nreconnect = { min = \"20ms\", max = \"200ms\" }\n";
const HANGS_UP: &str = "steps = [{ connect = \"/\" }, { join = \"room\" }, \
    { push = \"hang_up\", reply = false }, { receive = \"400ms\" }]";

#[track_caller]
fn at(ran: &Ran) -> Vec<OfServer> {
    let servers: Vec<OfServer> = ran.record.servers().values().map(|it| it.seen).collect();
    // The figures of servers add up to the totals.
    let sum = |of: fn(&OfServer) -> u64| servers.iter().map(of).sum::<u64>();
    let counts = |count| ran.count(count);
    let text = format!("{servers:#?}\n{}", ran.text());
    assert_eq!(sum(|it| it.connects_tried), counts(Count::ConnectsTried), "{text}");
    assert_eq!(sum(|it| it.connects), counts(Count::Connects), "{text}");
    assert_eq!(sum(|it| it.reconnects), counts(Count::Reconnects), "{text}");
    assert_eq!(sum(|it| it.errors), ran.record.errors().total(), "{text}");
    assert_eq!(sum(|it| it.connected), 0, "{text}");
    assert_eq!(sum(|it| it.cut), counts(Count::DropsReset) + counts(Count::DropsSilent), "{text}");
    servers
}

fn of<const N: usize>(servers: &[OfServer], what: fn(&OfServer) -> u64) -> [u64; N] {
    servers.iter().map(what).collect::<Vec<_>>().try_into().unwrap()
}

#[test]
fn all_workers_together_spread_users_evenly_and_by_weight() {
    let servers = three();
    let addrs = servers.each_ref().map(|server| server.addr);
    let session =
        format!("{BACK}steps = [{{ connect = \"/\" }}, {{ join = \"room\" }}, {{ close = true }}]");
    for spread in ["", "spread = \"sticky\"", "spread = \"elsewhere\""] {
        let ran = run_with(&scenario(spread, &addrs, 60, &session), 4);
        ran.users_are(60, 0);
        assert_eq!(of(&at(&ran), |it| it.users), [20; 3], "{spread}");
        assert_eq!(of(&at(&ran), |it| it.connects), [20; 3], "{spread}");
    }
    let before = servers.each_ref().map(Server::accepted);
    let text = scenario("", &addrs, 60, &session);
    let weights = text.replacen("\"\n[[target]]", "\"\nweight = 4\n[[target]]", 1);
    let ran = run_with(&weights, 3);
    assert_eq!(of(&at(&ran), |it| it.users), [40, 10, 10]);
    let accepted: Vec<u64> =
        servers.iter().zip(before).map(|(server, before)| server.accepted() - before).collect();
    assert_eq!(accepted, [40, 10, 10], "by their own count");
}

#[test]
fn closed_user_reconnects_by_the_spread_rule() {
    let session = format!("{BACK}{HANGS_UP}");
    for (spread, left) in [("sticky", 0), ("elsewhere", 10), ("random", 0), ("round-robin", 0)] {
        let servers = three();
        let addrs = servers.each_ref().map(|server| server.addr);
        let head = format!("spread = \"{spread}\"");
        let ran = run_with(&scenario(&head, &addrs, 30, &session), 2);
        ran.users_are(30, 0);
        ran.errors_are(&[(E::EndOfStream, 30)]);
        let servers = at(&ran);
        let users: [u64; 3] = of(&servers, |it| it.users);
        let (back, lost): ([u64; 3], [u64; 3]) =
            (of(&servers, |it| it.reconnects), of(&servers, |it| it.lost));
        assert_eq!(lost, users, "{spread}");
        assert_eq!(servers.iter().map(|it| it.left).sum::<u64>(), 3 * left, "{spread}");
        match spread {
            "sticky" | "random" => assert_eq!(back, users, "{spread}"),
            "elsewhere" => assert_eq!(back, [users[2], users[0], users[1]], "to the next one"),
            _ => assert_eq!(back.iter().sum::<u64>(), 30),
        }
        if spread != "random" {
            assert_eq!(users, [10; 3], "{spread}");
        }
    }
}

#[test]
fn each_connection_takes_the_next_server_in_turn() {
    let servers = three();
    let addrs = servers.each_ref().map(|server| server.addr);
    let again = "{ connect = \"/\" }, { close = true }, ".repeat(9);
    let session = format!("protocol = \"phoenix\"\nsteps = [{again}]");
    // A user's first server follows from its number, the others from the worker's turns.
    let ran = run_with(&scenario("", &addrs, 9, &session), 1);
    assert_eq!(of(&at(&ran), |it| it.connects), [27; 3]);
    let ran = run_with(&scenario("spread = \"sticky\"", &addrs, 1, &session), 1);
    let mut connects: [u64; 3] = of_all(&ran, |it| it.connects);
    connects.sort_unstable();
    assert_eq!(connects, [0, 0, 9]);
}

/// The same if nothing happened with some of them.
fn of_all(ran: &Ran, what: fn(&OfServer) -> u64) -> [u64; 3] {
    [0, 1, 2].map(|server| ran.record.servers().get(&server).map_or(0, |it| what(&it.seen)))
}

#[test]
fn refused_user_connects_to_the_next_server() {
    let [first, second, third] = three();
    let addrs = [first.addr, second.addr, third.addr];
    second.kill();
    let session = format!("{BACK}steps = [{{ connect = \"/\" }}, {{ join = \"room\" }}]");
    let ran = run_with(&scenario("spread = \"elsewhere\"", &addrs, 30, &session), 1);
    ran.users_are(30, 0);
    ran.errors_are(&[(E::ConnectRefused, 10)]);
    let servers = at(&ran);
    assert_eq!(of(&servers, |it| it.refused), [0, 10, 0]);
    assert_eq!(of(&servers, |it| it.connects), [10, 0, 20]);
    // HTTP as well, by the retries of its time-outs.
    let head = "spread = \"elsewhere\"\ntimeouts = { retries = 2, retry_wait = \"1ms\" }";
    let answer = |mut peer: Peer| {
        while peer.head().is_some() {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    };
    let pages = [Server::new(answer), Server::new(answer)];
    let addrs = [pages[0].addr, addrs[1], pages[1].addr];
    let ran = run_with(&scenario(head, &addrs, 30, "steps = [{ get = \"/\", status = 200 }]"), 1);
    ran.users_are(30, 0);
    assert_eq!((ran.count(Count::HttpAnswers), ran.errors(E::ConnectRefused)), (30, 10));
    assert_eq!(of(&at(&ran), |it| it.left), [0, 10, 0]);
}

#[test]
fn disconnected_user_returns_or_changes_server_by_the_spread_rule() {
    for (spread, back) in [("sticky", 0), ("elsewhere", 1)] {
        let servers = three();
        let addrs = servers.each_ref().map(|server| server.addr);
        let session = "protocol = \"phoenix\"\n\
            drop = { every = \"1s\", for = \"100ms\", how = \"rst\", phase = \"cuts\" }\n\
            steps = [{ connect = \"/\" }, { join = \"room\" }, { receive = \"2s\" }]\n\
            [[phase]]\nname = \"cuts\"\nduration = \"1s\"\nrate = 0\n\
            [[phase]]\nduration = \"1s\"\nrate = 0";
        let head = format!("spread = \"{spread}\"");
        let ran = run_with(&scenario(&head, &addrs, 30, session), 1);
        ran.users_are(30, 0);
        ran.errors_are(&[]);
        let servers = at(&ran);
        assert_eq!(of(&servers, |it| it.cut), [10; 3], "{servers:#?}");
        assert_eq!(of(&servers, |it| it.left), [10 * back; 3], "{servers:#?}");
        assert_eq!(of(&servers, |it| it.reconnects), [10; 3], "{servers:#?}");
    }
}

#[test]
fn agents_spread_users_like_one_host() {
    let servers = three();
    let addrs = servers.each_ref().map(|server| server.addr);
    let session = format!("{BACK}{HANGS_UP}");
    let mut text = scenario("spread = \"elsewhere\"", &addrs, 60, &session);
    for _ in 0..2 {
        let any = "127.0.0.1:0".parse().unwrap();
        let agent = Agent::bind(any, "a token".to_owned(), Arc::new(|_: &str| ())).unwrap();
        let address = agent.address().unwrap();
        thread::spawn(move || agent.run());
        text += &format!("[[agent]]\naddress = \"{address}\"\ntoken = \"a token\"\n");
    }
    let ran = run_with(&text, 4);
    ran.users_are(60, 0);
    let servers = at(&ran);
    assert_eq!(of(&servers, |it| it.users), [20; 3]);
    assert_eq!(of(&servers, |it| it.left), [20; 3]);
    assert_eq!(of(&servers, |it| it.reconnects), [20; 3]);
}
