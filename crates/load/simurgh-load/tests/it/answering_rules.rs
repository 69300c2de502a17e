//! Users against servers with pings of their own: rules of `answer`, and heartbeats with a text.

use std::time::Duration;

use crate::outside::{Peer, Server, close, of, run};
use simurgh_load::record::{Count, ErrorKind as E, Metric};

const PING: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(2);

/// Sends a ping again and again, and closes a client whose next frame is not the pong.
fn pings(peer: &mut Peer, ping: &str, pong: &str) {
    peer.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    while peer.text(ping) {
        match peer.frame() {
            Some(got) if got.payload == pong.as_bytes() => std::thread::sleep(PING),
            Some(got) if got.opcode == 8 => {
                peer.send(close(1000));
                return;
            }
            _ => {
                peer.send(close(1008));
                return;
            }
        }
    }
}

fn server(ping: &'static str, pong: &'static str) -> Server {
    Server::new(move |mut peer| {
        if peer.upgrade() {
            pings(&mut peer, ping, pong);
        }
    })
}

#[test]
fn users_with_a_rule_stay_connected_while_they_think_and_loop() {
    let server = server("{}\n{\"push\":1}", "{\"user\":0}");
    let keys = "answer = { when = { json = \"$\", is = \"{}\" }, send = '{\"user\":{{n}}}' }\n";
    let steps = "steps = [{ set = \"n\", value = \"0\" }, { connect = \"/\" }, { think = \"1s\" }, \
                 { wait = { contains = \"push\" } }, { loop = 3, every = \"200ms\", steps = [] }, \
                 { receive = \"500ms\" }, { close = true }]";
    let ran = run(&of(server.addr, 20, "raw", "", &format!("{keys}{steps}")));
    ran.errors_are(&[]);
    ran.users_are(20, 0);
    let answers = ran.count(Count::Answers);
    assert!(answers >= 20 * 8, "{}", ran.text());
    assert_eq!(ran.count(Count::FramesOutText), answers);
}

#[test]
fn users_without_a_rule_are_closed() {
    let server = server("2", "3");
    let steps = "steps = [{ connect = \"/\" }, { receive = \"9s\" }, { close = true }]";
    let ran = run(&of(server.addr, 5, "raw", "", steps));
    ran.errors_are(&[(E::Closed(1008), 5)]);
    ran.users_are(0, 5);
    assert_eq!(ran.count(Count::Answers), 0);
}

#[test]
fn rule_still_answers_after_a_planned_disconnection() {
    let server = server("2", "3");
    let keys = "answer = [{ when = \"2\", send = \"3\" }]\n\
                drop = { every = \"1s\", for = \"100ms\", how = \"rst\" }\n";
    let steps = "steps = [{ connect = \"/\" }, { receive = \"3s\" }, { close = true }]";
    let ran = run(&of(server.addr, 5, "raw", "", &format!("{keys}{steps}")));
    ran.errors_are(&[]);
    assert!(ran.count(Count::Reconnects) >= 5, "{}", ran.text());
}

#[test]
fn ping_is_not_the_reply_to_a_message() {
    let server = Server::new(|mut peer| {
        if !peer.upgrade() || peer.frame().is_none() {
            return;
        }
        peer.text("2");
        assert_eq!(peer.frame().unwrap().payload, b"3");
        std::thread::sleep(PING);
        peer.text("reply");
        peer.echo();
    });
    let steps = "answer = [{ when = \"2\", send = \"3\" }]\n\
                 steps = [{ connect = \"/\" }, { send = \"a\", reply = true, check = \"reply\" }, \
                 { close = true }]";
    let ran = run(&of(server.addr, 3, "raw", "", steps));
    ran.errors_are(&[]);
    assert_eq!((ran.timed(Metric::Message), ran.count(Count::Matches)), (3, 3));
}

#[test]
fn heartbeat_with_a_text_is_sent_at_its_interval() {
    let server = Server::new(|mut peer| {
        peer.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        peer.messages(|_, got| {
            assert_eq!((got.opcode, got.payload.as_slice()), (2, &b"2x"[..]));
            true
        });
    });
    let keys = "heartbeat = { every = \"500ms\", send = \"2x\", binary = true }\n";
    let steps = "steps = [{ connect = \"/\" }, { receive = \"4s\" }, { close = true }]";
    let ran = run(&of(server.addr, 10, "raw", "", &format!("{keys}{steps}")));
    ran.errors_are(&[]);
    ran.users_are(10, 0);
    let beats = ran.count(Count::Heartbeats);
    assert!((10 * 7..=10 * 9).contains(&beats), "{}", ran.text());
    assert_eq!(ran.count(Count::FramesOutBinary), beats);
}
