//! The real binary as a child process in its own directory, and a small client.

pub(crate) mod engine;
pub(crate) mod hosts;
pub(crate) mod listener;
pub(crate) mod node;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::stream::MaybeTlsStream;
use tungstenite::{Message, WebSocket};

/// The longest wait for any event.
pub(crate) const WAIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) fn simurgh() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_simurgh"))
}

/// The example `own`, which `cargo test` builds beside the binary.
pub(crate) fn own() -> PathBuf {
    let path = simurgh().with_file_name("examples").join("own");
    assert!(path.exists(), "not built: cargo build -p simurgh-cli --example own");
    path
}

/// Removes the environment variables that the program would read.
fn command(program: &Path, dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(dir);
    command
        .env_remove("SIMURGH_API_TOKEN")
        .env_remove("SIMURGH_LOAD_TOKEN")
        .env_remove("SIMURGH_TOKEN_KEY")
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .env_remove("RUST_BACKTRACE");
    command
}

pub(crate) fn directory(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

/// Runs the binary to its end; on a timeout it is killed, and the test fails.
#[track_caller]
pub(crate) fn run(dir: &Path, args: &[&str]) -> Ran {
    run_with(command(&simurgh(), dir, args))
}

/// Like [`run`], with a longer limit than [`WAIT`].
#[track_caller]
pub(crate) fn run_long(dir: &Path, args: &[&str], within: Duration) -> Ran {
    run_within(command(&simurgh(), dir, args), within)
}

/// Like [`run`], with the example `own`.
#[track_caller]
pub(crate) fn run_own(dir: &Path, args: &[&str]) -> Ran {
    run_with(command(&own(), dir, args))
}

#[track_caller]
pub(crate) fn run_with_env(dir: &Path, args: &[&str], env: (&str, &str)) -> Ran {
    run_with_envs(dir, args, &[env])
}

#[track_caller]
pub(crate) fn run_with_envs(dir: &Path, args: &[&str], envs: &[(&str, &str)]) -> Ran {
    let mut command = command(&simurgh(), dir, args);
    command.envs(envs.iter().copied());
    run_with(command)
}

#[track_caller]
fn run_with(command: Command) -> Ran {
    run_within(command, WAIT)
}

#[track_caller]
fn run_within(mut command: Command, within: Duration) -> Ran {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A pipe holds only 64 KiB.
    let (out, err) = (text_of(child.stdout.take().unwrap()), text_of(child.stderr.take().unwrap()));
    let status = wait(&mut child, within);
    let (out, err) = (out.join().unwrap(), err.join().unwrap());
    let Some(status) = status else { panic!("it goes on running\n{out}\n{err}") };
    Ran { status, stdout: out, stderr: err }
}

/// Reads a pipe to its end, on a thread.
fn text_of(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        text
    })
}

/// Kills the process after a timeout.
fn wait(child: &mut Child, within: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < within {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// A serving process; killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    /// Removed with the process.
    _dir: TempDir,
    /// The printed addresses.
    pub(crate) addresses: Vec<String>,
}

impl Server {
    /// `simurgh serve` with this `simurgh.toml` and these flags.
    #[track_caller]
    pub(crate) fn start(toml: &str, args: &[&str]) -> Self {
        let files: &[(&str, &str)] = if toml.is_empty() { &[] } else { &[("simurgh.toml", toml)] };
        Self::start_in(directory(files), args, 1)
    }

    /// Like `start`, in this directory and with this many addresses.
    #[track_caller]
    pub(crate) fn start_in(dir: TempDir, args: &[&str], addresses: usize) -> Self {
        Self::start_program(&simurgh(), dir, args, addresses)
    }

    #[track_caller]
    pub(crate) fn start_program(
        program: &Path,
        dir: TempDir,
        args: &[&str],
        addresses: usize,
    ) -> Self {
        Self::start_with_env(program, dir, args, addresses, &[])
    }

    #[track_caller]
    pub(crate) fn start_with_env(
        program: &Path,
        dir: TempDir,
        args: &[&str],
        addresses: usize,
        env: &[(&str, &str)],
    ) -> Self {
        let mut command = command(program, dir.path(), &[&["serve"], args].concat());
        command.envs(env.iter().copied());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut server = Self { child, _dir: dir, addresses: Vec::new() };
        let mut stdout = BufReader::new(server.child.stdout.take().unwrap());
        while server.addresses.len() < addresses {
            let mut line = String::new();
            // A process that ends closes the pipe; the test harness ends one that hangs.
            let read = stdout.read_line(&mut line).unwrap();
            assert!(read > 0, "it ended before it was ready\n{}", server.ended().1);
            let url = line.trim_end().strip_prefix("listening on ");
            let url = url.expect("a line for each address");
            server.addresses.push(url.strip_prefix("http://").unwrap_or(url).to_owned());
        }
        server
    }

    /// Reads the log up to the line with this text, and returns it.
    #[track_caller]
    pub(crate) fn logged(&mut self, text: &str) -> String {
        let stderr = self.child.stderr.as_mut().unwrap();
        loop {
            // Reads single bytes, so that the rest is left for others.
            let mut line = Vec::new();
            while line.last() != Some(&b'\n') {
                let mut byte = [0];
                stderr.read_exact(&mut byte).expect("the log ended");
                line.push(byte[0]);
            }
            let line = String::from_utf8(line).unwrap();
            if line.contains(text) {
                return line;
            }
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for the end: status, and the log.
    #[track_caller]
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child, WAIT).expect("it should have ended");
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        (status, stderr)
    }

    /// A client of V2.
    #[track_caller]
    pub(crate) fn client(&self) -> Client {
        let url = format!("ws://{}/socket/websocket?vsn=2.0.0", self.addresses[0]);
        let (socket, _) = tungstenite::connect(url).unwrap();
        if let MaybeTlsStream::Plain(stream) = socket.get_ref() {
            stream.set_read_timeout(Some(WAIT)).unwrap();
        }
        Client { socket, next: 0 }
    }

    /// A client at this path, or the body of its refusal.
    #[track_caller]
    pub(crate) fn try_client(&self, path: &str) -> Result<Client, String> {
        match tungstenite::connect(format!("ws://{}{path}", self.addresses[0])) {
            Ok((socket, _)) => {
                if let MaybeTlsStream::Plain(stream) = socket.get_ref() {
                    stream.set_read_timeout(Some(WAIT)).unwrap();
                }
                Ok(Client { socket, next: 0 })
            }
            Err(tungstenite::Error::Http(refusal)) => {
                Err(String::from_utf8(refusal.into_body().unwrap_or_default()).unwrap())
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> u16 {
        let answer = self.answer(&format!("GET {path}"));
        answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect(&answer)
    }

    /// The sum over all shards.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let answer = self.answer("GET /metrics");
        let values = answer.lines().filter_map(|line| line.strip_prefix(name)?.split_once(' '));
        values.map(|(_, value)| value.parse::<u64>().expect("a whole number")).sum()
    }

    /// The head and body of the response.
    #[track_caller]
    fn answer(&self, request: &str) -> String {
        use std::io::Write;
        let address = &self.addresses[0];
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        let head = format!("{request} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that handles only the five fields of V2.
#[derive(Debug)]
pub(crate) struct Client {
    socket: WebSocket<MaybeTlsStream<TcpStream>>,
    next: u32,
}

impl Client {
    /// Sends a message; returns its new ref.
    pub(crate) fn send(&mut self, topic: &str, event: &str, payload: Value) -> Value {
        self.next += 1;
        let msg_ref = json!(self.next.to_string());
        let message = json!([null, msg_ref, topic, event, payload]);
        self.socket.send(Message::text(message.to_string())).unwrap();
        msg_ref
    }

    /// The next message: ref, topic, event, payload.
    #[track_caller]
    pub(crate) fn receive(&mut self) -> (Value, String, String, Value) {
        let message = self.socket.read().unwrap();
        let [_, msg_ref, topic, event, payload]: [Value; 5] =
            serde_json::from_str(message.to_text().unwrap()).unwrap();
        let text = |value: Value| value.as_str().unwrap().to_owned();
        (msg_ref, text(topic), text(event), payload)
    }

    #[track_caller]
    pub(crate) fn ask(
        &mut self,
        topic: &str,
        event: &str,
        payload: Value,
        status: &str,
        answer: Value,
    ) {
        let msg_ref = self.send(topic, event, payload);
        self.expect_reply(msg_ref, topic, status, answer);
    }

    /// Expects a refusal by this limit, with the time to retry.
    #[track_caller]
    #[allow(dead_code, reason = "not every test has limits")]
    pub(crate) fn ask_too_much(&mut self, topic: &str, event: &str, payload: Value, limit: &str) {
        let msg_ref = self.send(topic, event, payload);
        let (answered, _, event, reply) = self.receive();
        assert_eq!((answered, &*event), (msg_ref, "phx_reply"), "{reply}");
        let response = &reply["response"];
        assert_eq!(
            (&response["reason"], &response["limit"]),
            (&json!("rate_limited"), &json!(limit))
        );
        let ms = response["retry_after_ms"].as_u64();
        assert!(ms.is_some_and(|ms| (1..=1_000).contains(&ms)), "{response}");
    }

    #[track_caller]
    pub(crate) fn expect_reply(
        &mut self,
        msg_ref: Value,
        topic: &str,
        status: &str,
        answer: Value,
    ) {
        let reply = json!({"status": status, "response": answer});
        assert_eq!(self.receive(), (msg_ref, topic.to_owned(), "phx_reply".to_owned(), reply));
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, topic: &str, event: &str, payload: Value) {
        assert_eq!(self.receive(), (Value::Null, topic.to_owned(), event.to_owned(), payload));
    }

    /// Expects that no message is in flight: the next one is the answer to a heartbeat.
    #[track_caller]
    pub(crate) fn expect_quiet(&mut self) {
        self.ask("phoenix", "heartbeat", json!({}), "ok", json!({}));
    }

    /// Joins, expecting `{}`.
    #[track_caller]
    pub(crate) fn join(&mut self, topic: &str, payload: Value) {
        self.ask(topic, "phx_join", payload, "ok", json!({}));
    }

    /// The code of the next close frame; skips messages before it.
    #[track_caller]
    pub(crate) fn close_code(&mut self) -> u16 {
        for _ in 0..1000 {
            if let Message::Close(frame) = self.socket.read().unwrap() {
                return frame.expect("a code").code.into();
            }
        }
        panic!("no close frame")
    }
}
