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
fn version_names_the_application_and_simurgh() {
    let version = run(&["--version"]);
    assert!(version.starts_with("server 0.3.0, on simurgh "), "{version}");
}

#[test]
fn drive_runs_the_rooms_without_a_network() {
    let arguments = ["drive", "--sockets", "50", "--topic", "rooms:lobby", "--event", "new:msg"];
    let report = run(&arguments);
    assert!(report.contains("50 sockets"), "{report}");
    assert!(report.contains("pushed \"new:msg\" and answered"), "{report}");
}
