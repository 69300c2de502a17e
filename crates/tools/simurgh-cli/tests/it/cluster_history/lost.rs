//! The last message of a topic is lost on its way to one node, and no later message reveals that.
//! TCP repeats lost packets, so the connection has to end, too: that of the node, or one between
//! two servers of the engine, which the node does not see.

use std::net::TcpListener;
use std::time::Duration;

use super::back_end::{TOPIC, histories, keeps, plan, publish, texts};
use super::member::Member;
use crate::support::engine::{Engine, STORE};
use crate::support::engine::{until, within};
use crate::support::hosts::{Direction, HUB, Host, are_here, on_a_bridge};
use crate::support::node::{Node, Plan, know_each_other};

/// Nodes check each topic every 30 s.
const FOUND: Duration = Duration::from_secs(35);

/// A node on the engine's host, and one with a member on another host.
struct Fixture {
    host: Host,
    near: Node,
    far: Node,
    members: [Member; 2],
}

impl Fixture {
    fn new(host: Host, servers: [&str; 2]) -> Self {
        let near = Plan { host: HUB.to_owned(), ..plan("near", servers[0]) }.start();
        let far = Plan { host: host.address.clone(), by: host.by(), ..plan("far", servers[1]) };
        let far = far.start();
        know_each_other(&[&near, &far]);
        [&near, &far].into_iter().for_each(keeps);
        let members = [("near-0", &near), ("far-0", &far)]
            .map(|(name, node)| Member::joins(name, node, TOPIC));
        let fixture = Self { host, near, far, members };
        publish(&fixture.near, "first");
        fixture.members.iter().for_each(|it| it.receives(0, &["first"]));
        fixture
    }

    /// Ends the host's connections to a port of the engine, and loses their messages in flight.
    fn loses_the_last(&self, port: &str, has_ended: impl FnMut() -> Option<()>) {
        self.host.loses(port, &[Direction::In]);
        publish(&self.near, "last");
        self.members[0].receives(0, &["first", "last"]);
        self.host.resets(port);
        until("the connection has ended", has_ended);
        assert_eq!(self.members[1].texts(), ["first"]);
        self.host.heals();
    }

    /// Checks that the message was found, and later ones arrive in order.
    fn is_whole(&self) {
        publish(&self.far, "next");
        for member in &self.members {
            member.receives(0, &["first", "last", "next"]);
            member.has_no_gap();
            member.has_received_all_of(&histories([&self.near, &self.far]));
        }
        assert_eq!(texts(&histories([&self.far])), ["first", "last", "next"]);
    }
}

#[test]
#[ignore = "needs nats-server and root"]
fn last_message_lost_with_a_link_is_delivered_over_the_next_link() {
    if !are_here(module_path!(), "last_message_lost_with_a_link_is_delivered_over_the_next_link") {
        return;
    }
    let host = on_a_bridge(1).pop().unwrap();
    let engine = Engine::start_at(HUB, STORE);
    let fixture = Fixture::new(host, [&engine.address(); 2]);
    fixture.loses_the_last(&engine.port().to_string(), || {
        (fixture.far.health() == "away").then_some(())
    });
    fixture.members[1].receives(0, &["first", "last"]);
    fixture.is_whole();
}

#[test]
#[ignore = "needs nats-server and root"]
fn last_message_lost_between_brokers_is_delivered_on_the_same_link() {
    if !are_here(module_path!(), "last_message_lost_between_brokers_is_delivered_on_the_same_link")
    {
        return;
    }
    let host = on_a_bridge(1).pop().unwrap();
    let free = TcpListener::bind((HUB, 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let keeps = "jetstream { store_dir: store, domain: hub }\n";
    let hub = format!("{keeps}leafnodes {{ listen: \"{HUB}:{port}\" }}\n");
    let leaf = format!(
        "mappings = {{ \"$JS.API.>\": \"$JS.hub.API.>\" }}\n\
         leafnodes {{ remotes = [ {{ url: \"nats-leaf://{HUB}:{port}\" }} ] }}\n"
    );
    let hub = Engine::start_at(HUB, &hub);
    let leaf = Engine::start_by(&host.by(), &host.address, &leaf);
    let fixture = Fixture::new(host, [&hub.address(), &leaf.address()]);
    fixture.loses_the_last(&port.to_string(), || {
        // The connection ends when it sends the next bytes; at the latest a beat.
        leaf.log().contains("Leafnode connection closed").then_some(())
    });
    within(FOUND, "the last message is found", || {
        (fixture.members[1].texts() == ["first", "last"]).then_some(())
    });
    fixture.is_whole();
}
