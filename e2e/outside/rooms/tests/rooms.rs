//! Members of a room, without a network.

use std::error::Error;

use simurgh::driver::Driver;
use simurgh::{Endpoint, Payload, json};
use simurgh_testing::{TestServer, assert_push, assert_reply};

#[test]
fn room_members_receive_each_message() -> Result<(), Box<dyn Error>> {
    let endpoint = Endpoint::builder().socket(rooms::user_socket()).start_local()?;
    let mut driver = Driver::start(&endpoint);
    let ada = driver.connect("/socket", json!({}))?;
    let bob = driver.connect("/socket", json!({}))?;
    for socket in [ada, bob] {
        let joined = driver.join(socket, "rooms:lobby", json!({}))?;
        driver.reply(joined)?;
    }
    let hello = json!({"body": "hello"});
    let said = driver.push(ada, "rooms:lobby", "new:msg", hello.clone())?;
    assert_eq!(driver.reply(said)?.response, json!({"said": 1}).into());
    assert_eq!(*driver.message(bob, "new:msg")?.payload(), Payload::from(hello));
    driver.leave(ada, "rooms:lobby")?;
    assert_eq!(*driver.message(bob, "left")?.payload(), Payload::from(json!({"said": 1})));
    Ok(())
}

#[test]
fn join_of_a_private_room_is_unauthorized() -> Result<(), Box<dyn Error>> {
    let endpoint = Endpoint::builder().socket(rooms::user_socket()).start_local()?;
    let mut driver = Driver::start(&endpoint);
    let socket = driver.connect("/socket", json!({}))?;
    let joined = driver.join(socket, "rooms:private", json!({}))?;
    assert_eq!(driver.reply(joined)?.response, json!({"reason": "unauthorized"}).into());
    Ok(())
}

#[test]
fn assertion_macros_check_replies_and_pushes() {
    let server = TestServer::start(rooms::user_socket());
    let (ada, bob) = (server.connect(()), server.connect(()));
    let room = ada.join("rooms:lobby", json!({}));
    bob.join("rooms:lobby", json!({}));
    assert_reply!(room.push("new:msg", json!({"body": "hello"})), "ok", {"said": 1});
    assert_push!(bob, "new:msg", {"body": "hello"});
}
