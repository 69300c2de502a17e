//! A connection in serializer V2 that a thread reads from briefly, between commands.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tungstenite::stream::MaybeTlsStream;
use tungstenite::{Message, WebSocket};

pub(crate) const READ_TIMEOUT: Duration = Duration::from_millis(5);

pub(crate) struct Listener(WebSocket<MaybeTlsStream<TcpStream>>);

impl Listener {
    /// `None` if there is no answer.
    pub(crate) fn connect(address: &str) -> Option<Self> {
        let url = format!("ws://{address}/socket/websocket?vsn=2.0.0");
        let socket = tungstenite::connect(url).ok()?.0;
        if let MaybeTlsStream::Plain(stream) = socket.get_ref() {
            stream.set_read_timeout(Some(READ_TIMEOUT)).ok()?;
            stream.set_nodelay(true).ok()?;
        }
        Some(Self(socket))
    }

    /// The next read shows whether the connection has ended.
    pub(crate) fn send(&mut self, message: &Value) {
        let _ = self.0.send(Message::text(message.to_string()));
    }

    /// `None` after the timeout; an error if the connection has ended.
    pub(crate) fn read(&mut self) -> Result<Option<String>, ()> {
        match self.0.read() {
            Ok(Message::Text(text)) => Ok(Some(text.to_string())),
            Ok(_) => Ok(None),
            Err(tungstenite::Error::Io(error))
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
            {
                Ok(None)
            }
            Err(_) => Err(()),
        }
    }
}

/// A thread that takes commands; it ends when this is dropped, which closes its channel.
pub(crate) struct Worker<Command> {
    commands: Option<mpsc::Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl<Command: Send + 'static> Worker<Command> {
    pub(crate) fn start(run: impl FnOnce(mpsc::Receiver<Command>) + Send + 'static) -> Self {
        let (commands, taken) = mpsc::channel();
        Self { commands: Some(commands), thread: Some(std::thread::spawn(move || run(taken))) }
    }

    pub(crate) fn send(&self, command: Command) {
        self.commands.as_ref().unwrap().send(command).unwrap();
    }
}

impl<Command> Drop for Worker<Command> {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
