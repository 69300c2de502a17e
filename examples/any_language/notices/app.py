"""Counts the seconds that each user is online, and has a producer for each room with members.

Simurgh reports who comes and goes (docs/BACKENDS.md, Notices). Needs Python 3.11, no packages.
"""

import base64
import hmac
import json
import os
import sqlite3
import threading
import time
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, urlopen

SIMURGH = os.environ.get("SIMURGH_URL", "http://127.0.0.1:4000")
TOKEN = os.environ["SIMURGH_API_TOKEN"]
SECRET = base64.b64decode(os.environ["HOOK_SECRET"].removeprefix("whsec_"))

database = sqlite3.connect(os.environ.get("DATABASE", "app.sqlite3"), check_same_thread=False)
database.executescript("""
CREATE TABLE IF NOT EXISTS notices (id TEXT PRIMARY KEY, at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS online (user TEXT PRIMARY KEY, seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS rooms (stay TEXT PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER);
""")
lock = threading.Lock()


def take(notices):
    """Applies all notices of a request, or none."""
    with lock:
        with database:  # one transaction
            for notice in notices:
                known = database.execute(
                    "INSERT INTO notices VALUES (?, ?) ON CONFLICT DO NOTHING",
                    (notice["id"], notice["timestamp"]),
                )
                if known.rowcount == 1:
                    apply(notice, notice["data"])
        follow_rooms()


def apply(notice, data):
    """Has the effect of a notice, once."""
    if notice["type"] == "user.disconnected":
        began, ended = (datetime.fromisoformat(at) for at in (data["since"], notice["timestamp"]))
        database.execute(
            "INSERT INTO online VALUES (?, ?)"
            " ON CONFLICT (user) DO UPDATE SET seconds = seconds + excluded.seconds",
            (data["user"], (ended - began).total_seconds()),
        )
    elif notice["type"] == "topic.occupied":
        # A dead letter that is sent again may come after the end.
        database.execute(
            "INSERT INTO rooms SELECT ?, ?, ? WHERE NOT EXISTS"
            " (SELECT 1 FROM notices WHERE id = ?) ON CONFLICT DO NOTHING",
            (data["stay"], data["topic"], notice["partition"], data["stay"] + "-2"),
        )
    elif notice["type"] == "topic.vacated":
        database.execute("DELETE FROM rooms WHERE stay = ?", (data["stay"],))
    elif notice["type"] == "log.reset":
        for partition in data["partitions"]:
            read_rooms(partition, notice)


def read_rooms(partition, reset):
    """Reads the rooms that have members, because notices of this partition may be missing."""
    found = call(f"stays?partition={partition}")
    [of] = found["partitions"]
    if of["log"] != reset["log"] or of["n"] < reset["n"]:
        raise ValueError("a node that is cut off has answered")  # Simurgh sends the reset again.
    rooms = [(it["stay"], it["topic"], partition) for it in found["stays"] if it["kind"] == "topic"]
    database.execute("DELETE FROM rooms WHERE partition = ?", (partition,))
    database.executemany("INSERT INTO rooms VALUES (?, ?, ?)", rooms)


def call(verb, body=None):
    """A request to the API of Simurgh."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    body = None if body is None else json.dumps(body).encode()
    with urlopen(Request(f"{SIMURGH}/api/{verb}", body, headers), timeout=5) as answer:
        return json.load(answer)


producers = {}


def follow_rooms():
    """Starts and stops producers, so that each room with members has one, also after a restart."""
    wanted = {topic for (topic,) in database.execute("SELECT DISTINCT topic FROM rooms")}
    for topic in producers.keys() - wanted:
        producers.pop(topic).set()
    for topic in wanted - producers.keys():
        producers[topic] = threading.Event()
        threading.Thread(target=produce, args=(topic, producers[topic]), daemon=True).start()


def produce(topic, is_stopped):
    """Publishes the time every second."""
    while not is_stopped.wait(1):
        try:
            call("broadcast", {"topic": topic, "event": "time", "payload": {"now": time.time()}})
        except OSError as error:
            print(f"{topic}: {error}")


def is_signed(headers, body):
    """Whether Simurgh has sent it, in the last five minutes."""
    at = headers.get("webhook-timestamp", "0")
    signed = f"{headers.get('webhook-id')}.{at}.".encode() + body
    signature = b"v1," + base64.b64encode(hmac.digest(SECRET, signed, "sha256"))
    found = headers.get("webhook-signature", "").encode().split()
    is_right = any(hmac.compare_digest(signature, one) for one in found)
    return is_right and abs(time.time() - int(at)) < 300


class Handler(BaseHTTPRequestHandler):
    """Takes notices, and shows what has become of them."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if not is_signed(self.headers, body):
            return self.answer(400)
        try:
            take(json.loads(body)["data"]["notices"])
        except Exception as error:  # Simurgh sends them again.
            print(error, flush=True)
            return self.answer(503)
        return self.answer(204)

    def do_GET(self):
        with lock:
            online = dict(database.execute("SELECT user, seconds FROM online"))
            self.answer(200, {"online": online, "producers": sorted(producers)})

    def answer(self, status, body=None):
        body = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        if status != 204:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    with database:  # Nothing is sent again after so long.
        database.execute(
            "DELETE FROM notices WHERE at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-8 days')"
        )
    follow_rooms()
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "3000"))), Handler)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
