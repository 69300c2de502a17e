//! What the load generator says it sent is what the server received, to the last byte, also where
//! a run is cut off while everybody speaks.

use crate::ran::{Ran, run_with};
use simurgh_load::record::{Count, Ending};
use wire_tests::{Server, eventually};

/// What the server has read so far: bytes, and requests handed to its HTTP side. Both as of one
/// moment, so that what looking costs can be taken off.
fn read_so_far(server: &Server) -> (u64, u64) {
    let text = server.get("/metrics").text().to_owned();
    let sum = |name: &str| -> u64 {
        let all = text.lines().filter_map(|line| line.split_once('{'));
        let named = all.filter(|(found, _)| *found == name);
        named.map(|(_, rest)| rest.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    (sum("simurgh_received_bytes_total"), sum("simurgh_handed_off_total"))
}

#[track_caller]
fn both_sides_agree(server: &Server, ran: &Ran) {
    let server_has = |name: &str| server.metrics(|full| full == format!("simurgh_{name}")) as u64;
    eventually("all connections to end at the server", || server_has("sockets") == 0);
    // A run that is cut off does not hear all answers, but what it sent is what was received.
    let upgrades = server_has("upgrades_total");
    match ran.ending {
        Ending::Finished => assert_eq!(ran.count(Count::Upgrades), upgrades, "{}", ran.text()),
        _ => assert!(ran.count(Count::Upgrades) <= upgrades, "{}", ran.text()),
    }
    assert_eq!(ran.count(Count::Joins), server_has("joins_total"), "{}", ran.text());
    let frames = ran.record.counts().frames_out();
    assert_eq!(frames, server_has("messages_in_total"), "{}", ran.text());
    for errors in ["errors_protocol_total", "errors_bad_message_total"] {
        assert_eq!(server_has(errors), 0, "{errors}");
    }
}

fn serve() -> Server {
    Server::serve().args("--idle-timeout off").start()
}

#[test]
fn load_and_server_agree_for_thousands_of_users_on_four_workers() {
    let server = serve();
    let text = format!(
        "[target]\nurl = \"ws://{}\"\n[[phase]]\nduration = \"2s\"\nrate = 1000\n\
         [[session]]\nname = \"one\"\nprotocol = \"phoenix\"\nsteps = [\
         {{ connect = \"/socket/websocket\" }}, {{ join = \"rooms:{{{{user_id}}}}\" }}, \
         {{ loop = 5, every = \"100ms\", steps = [\
           {{ push = \"new:msg\", payload = {{ body = \"{{{{random_string 20}}}}\" }} }}] }}, \
         {{ close = true }}]",
        server.addr()
    );
    // What a look costs, and how much was read before; the server's threads publish at leisure, so
    // it is looked at until three looks agree.
    let mut looks = [(0, 0); 3];
    eventually("looks that cost the same", || {
        looks = [read_so_far(&server), read_so_far(&server), read_so_far(&server)];
        let costs = [looks[1].0 - looks[0].0, looks[2].0 - looks[1].0];
        costs[0] == costs[1] && looks[2].1 - looks[0].1 == 2
    });
    let (before, look) = (looks[2], looks[2].0 - looks[1].0);
    let ran = run_with(&text, 4);
    ran.errors_are(&[]);
    ran.users_are(2000, 0);
    assert_eq!(ran.count(Count::Pushes), 10_000);
    assert_eq!(ran.record.counts().frames_out(), 12_000);
    both_sides_agree(&server, &ran);
    eventually("the server to have read what was sent, and no more", || {
        let after = read_so_far(&server);
        let bytes = after.0 - before.0 - look * (after.1 - before.1);
        bytes == ran.count(Count::BytesOut)
    });
    // Its own announcement, the join's reply; then each message and its reply.
    assert_eq!(ran.record.counts().frames_in(), 2000 * (2 + 5 * 2), "{}", ran.text());
}

/// Ends a run while all its users speak as fast as they can; several times, since what is lost
/// then is lost by chance.
#[test]
fn load_and_server_agree_for_a_run_that_ends_while_users_send() {
    for round in 0..5 {
        let server = serve();
        let text = format!(
            "duration = \"1500ms\"\n[target]\nurl = \"ws://{}\"\n\
             [[phase]]\nduration = \"1s\"\nrate = 500\n\
             [[session]]\nname = \"one\"\nprotocol = \"phoenix\"\nsteps = [\
             {{ connect = \"/socket/websocket\" }}, {{ join = \"rooms:{{{{random_number 1 \
             50}}}}\" }}, \
             {{ loop = \"forever\", every = \"20ms\", steps = [\
               {{ push = \"new:msg\", payload = {{ body = \"{{{{user_id}}}}\" }}, reply = \
               false }}] }}]",
            server.addr()
        );
        let ran = run_with(&text, 3);
        assert_eq!(ran.ending, Ending::Duration, "round {round}");
        ran.errors_are(&[]);
        both_sides_agree(&server, &ran);
    }
}
