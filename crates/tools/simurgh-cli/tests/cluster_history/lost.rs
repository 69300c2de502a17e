//! The last message of a topic is lost on the way to one node: nothing follows that would betray
//! it. TCP sends again what a network loses, so a connection has to end with it: the node's own, or
//! one between two servers of the engine, of which the node does not know.

use std::net::TcpListener;
use std::time::Duration;

use crate::back_end::{TOPIC, histories, keeps, plan, publish, texts};
use crate::engine::{Engine, STORE};
use crate::hosts::{HUB, Host, Way, are_here, on_a_bridge};
use crate::member::Member;
use crate::node::{Node, Plan, know_each_other};
use crate::{until, within};

/// Each topic is asked after every 30 s.
const FOUND: Duration = Duration::from_secs(35);

/// A node beside the engine, and one on a host of its own with a member.
struct World {
    host: Host,
    near: Node,
    far: Node,
    members: [Member; 2],
}

impl World {
    /// The nodes are linked to these servers.
    fn new(host: Host, servers: [&str; 2]) -> Self {
        let near = Plan { host: HUB.to_owned(), ..plan("near", servers[0]) }.start();
        let far = Plan { host: host.address.clone(), by: host.by(), ..plan("far", servers[1]) };
        let far = far.start();
        know_each_other(&[&near, &far]);
        [&near, &far].into_iter().for_each(keeps);
        let members = [("near-0", &near), ("far-0", &far)]
            .map(|(name, node)| Member::joins(name, node, TOPIC));
        let world = Self { host, near, far, members };
        publish(&world.near, "first");
        world.members.iter().for_each(|it| it.receives(0, &["first"]));
        world
    }

    /// The connection of this host to a port of the engine ends, and what was said last is lost
    /// with it.
    fn loses_the_last(&self, port: &str, has_ended: impl FnMut() -> Option<()>) {
        self.host.loses(port, &[Way::In]);
        publish(&self.near, "last");
        self.members[0].receives(0, &["first", "last"]);
        self.host.resets(port);
        until("the connection has ended", has_ended);
        assert_eq!(self.members[1].texts(), ["first"]);
        self.host.heals();
    }

    /// It was found, and all goes on in order.
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
fn the_last_message_that_ended_with_the_link_is_found_with_the_next_link() {
    if !are_here("lost::the_last_message_that_ended_with_the_link_is_found_with_the_next_link") {
        return;
    }
    let Some(host) = on_a_bridge(1).pop() else { return };
    let Some(engine) = Engine::start_at(HUB, STORE) else { return };
    let world = World::new(host, [&engine.address(); 2]);
    world.loses_the_last(&engine.port().to_string(), || {
        (world.far.health() == "away").then_some(())
    });
    world.members[1].receives(0, &["first", "last"]);
    world.is_whole();
}

#[test]
fn the_last_message_that_was_lost_between_servers_is_found_though_the_link_stands() {
    if !are_here(
        "lost::the_last_message_that_was_lost_between_servers_is_found_though_the_link_stands",
    ) {
        return;
    }
    let Some(host) = on_a_bridge(1).pop() else { return };
    let free = TcpListener::bind((HUB, 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let keeps = "jetstream { store_dir: store, domain: hub }\n";
    let hub = format!("{keeps}leafnodes {{ listen: \"{HUB}:{port}\" }}\n");
    let leaf = format!(
        "mappings = {{ \"$JS.API.>\": \"$JS.hub.API.>\" }}\n\
         leafnodes {{ remotes = [ {{ url: \"nats-leaf://{HUB}:{port}\" }} ] }}\n"
    );
    let Some(hub) = Engine::start_at(HUB, &hub) else { return };
    let Some(leaf) = Engine::start_by(&host.by(), &host.address, &leaf) else { return };
    let world = World::new(host, [&hub.address(), &leaf.address()]);
    world.loses_the_last(&port.to_string(), || {
        // Whatever it sends ends the connection; a beat, at the latest.
        leaf.log().contains("Leafnode connection closed").then_some(())
    });
    within(FOUND, "the last message is found", || {
        (world.members[1].texts() == ["first", "last"]).then_some(())
    });
    world.is_whole();
}
