//! A trace context (W3C) that comes with a request reaches questions to applications, and the log.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};
use tungstenite::Message;
use tungstenite::client::IntoClientRequest;

use crate::support::{Server, WAIT};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

fn traceparent() -> String {
    format!("00-{TRACE}-{SPAN}-01")
}

/// An application that allows everything, and the heads of the questions that it gets.
fn application() -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, questions) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap_or(0) > 0 {}
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let Some(length) = length.and_then(|length| length.parse().ok()) else { continue };
            reader.read_exact(&mut vec![0; length]).unwrap();
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
            let _ = asked.send(head);
        }
    });
    (address, questions)
}

/// Connects and joins, with this `traceparent`.
fn join(server: &Server, traceparent: Option<&str>) {
    let url = format!("ws://{}/socket/websocket?vsn=2.0.0", server.addresses[0]);
    let mut request = url.into_client_request().unwrap();
    if let Some(traceparent) = traceparent {
        request.headers_mut().insert("traceparent", traceparent.parse().unwrap());
    }
    let (mut socket, _) = tungstenite::connect(request).unwrap();
    let join = json!(["1", "1", "rooms:1", "phx_join", {}]);
    socket.send(Message::text(join.to_string())).unwrap();
    let reply: Value = serde_json::from_str(socket.read().unwrap().to_text().unwrap()).unwrap();
    assert_eq!(reply[4]["status"], "ok", "{reply}");
}

#[test]
fn trace_of_an_upgrade_reaches_its_questions_and_their_lines_of_the_log() {
    let (address, questions) = application();
    let toml = format!(
        "[[hook]]\nname = \"app\"\nurl = \"http://{address}/\"\nquestions = [\"connect\"]\n\
         [[channel]]\ntopic = \"rooms:*\"\njoin_hook = \"app\"\n"
    );
    let mut server = Server::start(&toml, &["--listen", "127.0.0.1:0", "--log", "debug"]);
    join(&server, Some(&traceparent()));
    for question in ["connect", "join"] {
        let head = questions.recv_timeout(WAIT).unwrap();
        assert!(head.starts_with(&format!("POST /{question} ")), "{head}");
        let sent = head.lines().find_map(|line| line.strip_prefix("traceparent: ")).unwrap();
        // Each question is a span of its own.
        assert!(sent.starts_with(&format!("00-{TRACE}-")) && sent.ends_with("-01"), "{sent}");
        assert!(!sent.contains(SPAN), "{sent}");
        let line = server.logged("a question was sent");
        assert!(line.contains(question) && line.contains(sent), "{line}");
    }
    for none in [None, Some("nonsense")] {
        join(&server, none);
        for _ in ["connect", "join"] {
            assert!(!questions.recv_timeout(WAIT).unwrap().contains("traceparent"));
            assert!(!server.logged("a question was sent").contains("trace="));
        }
    }
}

#[test]
fn trace_of_a_publish_over_http_is_in_its_lines_of_the_log() {
    let toml = "api_token = \"token-of-the-test\"\n";
    let mut server = Server::start(toml, &["--listen", "127.0.0.1:0", "--log", "debug"]);
    let mut publish = |headers: &str| {
        let mut stream = TcpStream::connect(&server.addresses[0]).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        let body = json!({"topic": "rooms:1", "event": "said", "payload": {}}).to_string();
        let head = format!(
            "POST /api/broadcast HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\
             authorization: Bearer token-of-the-test\r\ncontent-type: application/json\r\n\
             {headers}content-length: {}\r\n\r\n",
            server.addresses[0],
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
        server.logged("answered a request to the server API")
    };
    let line = publish(&format!("traceparent: {}\r\n", traceparent()));
    assert!(line.contains(&traceparent()) && line.contains("broadcast"), "{line}");
    for none in ["", "traceparent: nonsense\r\n"] {
        let line = publish(none);
        assert!(!line.contains("trace="), "{line}");
    }
}
