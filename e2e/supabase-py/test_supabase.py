"""Supabase's Python client, PyPI's `realtime`, against `simurgh serve` (PROTOCOL §11).

It speaks V1 and checks whatever it hears: what has another shape than it knows is logged as
"Unrecognized message format", which fails these tests.
"""

import asyncio
import json
import logging
import os
import re
import subprocess
import tempfile
import threading
import unittest
import urllib.request
from pathlib import Path

from realtime import AsyncRealtimeClient

ROOT = Path(__file__).resolve().parents[2]
BIN_DIR = Path(os.environ.get("E2E_BIN_DIR", ROOT / "target/debug"))
API_TOKEN = "the-token-of-the-back-end"
WAIT_S = 10


class Server:
    """`simurgh serve` with the configuration of docs/SUPABASE.md, on a port of its own."""

    def __init__(self):
        self.directory = tempfile.TemporaryDirectory()
        config = Path(self.directory.name) / "simurgh.toml"
        config.write_text('[[channel]]\nkind = "supabase"\n')
        self.process = subprocess.Popen(
            [BIN_DIR / "simurgh", "serve", "--listen", "127.0.0.1:0", "--config", config],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "SIMURGH_API_TOKEN": API_TOKEN},
        )
        # A server that never says that it listens is ended, and its output with it.
        patience = threading.Timer(20, self.process.kill)
        patience.start()
        line = self.process.stdout.readline()
        patience.cancel()
        found = re.match(r"listening on http://(\S+)$", line)
        if not found:
            self.stop()
            raise RuntimeError(f"simurgh serve is not ready: {line!r}")
        self.address = found[1]

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.directory.cleanup()

    def publish(self, body):
        request = urllib.request.Request(
            f"http://{self.address}/realtime/v1/api/broadcast",
            json.dumps(body).encode(),
            {"authorization": f"Bearer {API_TOKEN}", "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status


class Supabase(unittest.IsolatedAsyncioTestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    async def asyncSetUp(self):
        self.clients = []
        self.complaints = []
        self.handler = logging.Handler(logging.ERROR)
        self.handler.emit = lambda record: self.complaints.append(record.getMessage())
        logging.getLogger("realtime").addHandler(self.handler)

    async def asyncTearDown(self):
        for client in self.clients:
            await client.close()
        logging.getLogger("realtime").removeHandler(self.handler)
        self.assertEqual([], self.complaints, "the client does not know what it heard")

    async def client(self):
        url = f"ws://{self.server.address}/realtime/v1"
        client = AsyncRealtimeClient(url, "anon", auto_reconnect=False)
        await client.connect()
        self.clients.append(client)
        return client

    async def subscribe(self, channel):
        states = asyncio.Queue()
        await channel.subscribe(lambda state, error: states.put_nowait((state.value, error)))
        self.assertEqual(("SUBSCRIBED", None), await self.next(states))
        return states

    async def next(self, queue):
        return await asyncio.wait_for(queue.get(), WAIT_S)

    async def until(self, condition):
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.01)

    @staticmethod
    def config(**config):
        return {"config": config}

    async def test_broadcasts(self):
        ann, bob = await self.client(), await self.client()
        own = {"ack": True, "self": True}
        ours = ann.channel("room", self.config(broadcast=own))
        theirs = bob.channel("room")
        hers, his = asyncio.Queue(), asyncio.Queue()
        ours.on_broadcast("cursor", hers.put_nowait)
        theirs.on_broadcast("cursor", his.put_nowait)
        await self.subscribe(ours)
        await self.subscribe(theirs)
        await ours.send_broadcast("cursor", {"x": 1, "s": "ü"})
        for inbox in (hers, his):
            heard = await self.next(inbox)
            self.assertEqual(("cursor", {"x": 1, "s": "ü"}), (heard["event"], heard["payload"]))
        await theirs.send_broadcast("cursor", {"x": 2})
        self.assertEqual({"x": 2}, (await self.next(hers))["payload"])
        self.assertTrue(his.empty(), "without self the sender does not hear itself")

    async def test_presence(self):
        ann, bob = await self.client(), await self.client()
        presence = {"key": "ann", "enabled": True}
        ours = ann.channel("presence", self.config(broadcast=None, presence=presence))
        theirs = bob.channel("presence")
        synced = asyncio.Event()
        theirs.on_presence_sync(synced.set)
        await self.subscribe(ours)
        await ours.track({"at": "home"})
        await self.subscribe(theirs)
        await asyncio.wait_for(synced.wait(), WAIT_S)
        await self.until(lambda: "ann" in theirs.presence_state())
        self.assertEqual("home", theirs.presence_state()["ann"][0]["at"])
        await ours.track({"at": "work"})
        await self.until(lambda: theirs.presence_state()["ann"][0]["at"] == "work")
        await ours.untrack()
        await self.until(lambda: "ann" not in theirs.presence_state())

    async def test_changes_and_system_messages(self):
        channel = (await self.client()).channel("changes")
        systems, changes = asyncio.Queue(), asyncio.Queue()
        channel.on_system(systems.put_nowait)
        channel.on_postgres_changes("*", changes.put_nowait, table="notes", schema="public")
        await self.subscribe(channel)
        system = await self.next(systems)
        self.assertEqual("ok", system.status)
        self.assertEqual("postgres_changes", system.extension)

    async def test_a_back_end_broadcasts(self):
        channel = (await self.client()).channel("http")
        inbox = asyncio.Queue()
        channel.on_broadcast("news", inbox.put_nowait)
        await self.subscribe(channel)
        message = {"topic": "http", "event": "news", "payload": {"n": 1}}
        status = await asyncio.to_thread(self.server.publish, {"messages": [message]})
        self.assertEqual(202, status)
        self.assertEqual({"n": 1}, (await self.next(inbox))["payload"])

    async def test_a_fresh_token_is_taken(self):
        client = await self.client()
        channel = client.channel("token", self.config(broadcast={"ack": True, "self": True}))
        inbox = asyncio.Queue()
        channel.on_broadcast("after", inbox.put_nowait)
        await self.subscribe(channel)
        await client.set_auth("another")
        await channel.send_broadcast("after", {})
        await self.next(inbox)

    async def test_a_topic_without_a_name_is_refused(self):
        channel = (await self.client()).channel("")
        states = asyncio.Queue()
        await channel.subscribe(lambda state, error: states.put_nowait((state.value, error)))
        state, error = await self.next(states)
        self.assertEqual("CHANNEL_ERROR", state)
        self.assertIn("TopicNameRequired", str(error))
        # The client logs it as well.
        self.complaints = [line for line in self.complaints if "TopicNameRequired" not in line]


if __name__ == "__main__":
    unittest.main()
