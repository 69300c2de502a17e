//! Runs the program.

use std::process::Command;

fn run(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_server")).args(arguments).output().unwrap();
    let (out, err) = (output.stdout, output.stderr);
    let text = String::from_utf8(out).unwrap() + &String::from_utf8(err).unwrap();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn it_says_who_it_is_and_on_what() {
    let version = run(&["--version"]);
    assert!(version.starts_with("server 0.3.0, on simurgh "), "{version}");
}

#[test]
fn its_rooms_are_driven_without_a_network() {
    let arguments = ["drive", "--sockets", "50", "--topic", "rooms:lobby", "--event", "new:msg"];
    let report = run(&arguments);
    assert!(report.contains("50 sockets"), "{report}");
    assert!(report.contains("pushed \"new:msg\" and answered"), "{report}");
}
