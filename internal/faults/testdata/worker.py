"""The application of the fault tests, on the Python worker client.

The environment, the routes and the journal are those of the goworker beside
this file. What the client tells pinboard and is told is recorded around its
HTTP client, and requests before it looks at them, so that the record does not
depend on what the client thinks.
"""

import asyncio
import json
import logging
import os
import signal
import socket
import struct
import sys
import time
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator

WALL, CLOCK = time.time, os.open(os.environ["FAULTS_CLOCK"], os.O_RDONLY)
# Before anybody takes it: the wall clock, off by what the file says.
time.time = lambda: WALL() + struct.unpack("=q", os.pread(CLOCK, 8, 0))[0]

import httpx
import pinned.pinboard.registration as registration
import uvicorn
from fastapi import FastAPI, Request
from pinned import PinnedAPI, PinnedHost, PinnedWorker, route

NAMESPACES = os.environ["APP_NAMESPACES"].split(",")
PROCESS = os.environ["APP_PROCESS"]
TICK = float(os.environ["APP_TICK"])

journal = os.open(os.environ["APP_JOURNAL"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
lives = 0
registrations = 0  # sent so far


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def write(kind: str, begin: int, **fields: Any) -> None:
    line = json.dumps({"kind": kind, "process": PROCESS, "begin": begin, **fields}) + "\n"
    os.write(journal, line.encode())


class RecordingClient(httpx.AsyncClient):
    """Records what pinboard may conclude from a call before it is made, and
    what it granted and took before the worker knows."""

    async def post(self, url: Any, **kwargs: Any) -> httpx.Response:
        global registrations
        call, body, sent = str(url).rsplit("/", 1)[-1], kwargs.get("json"), now()
        if call == "register":
            registrations += 1
            instances = body.get("instances", {})
            write("kept", sent, ids=[f"{namespace}/{one}" for namespace, some in instances.items() for one in some])
        elif call == "release":
            for item in body:
                write("gave-up", sent, id=f"{item['namespace']}/{item['id']}")
        elif call == "deregister":
            write("gave-up", sent)
        res = await super().post(url, **kwargs)
        if res.status_code == 200 and call in ("register", "heartbeat"):
            told = res.json()
            at = now()
            for duplicate in told.get("duplicates") or []:
                write("gave-up", at, id=f"{duplicate['ns']}/{duplicate['id']}")
            write("granted", sent, at=at, end=sent + int(told["expiresInMs"] * 1e6))
        return res


class Recorder:
    """Records when requests come, and which ones are refused: no room answers
    503, so one is the worker's, and pinboard may place the id elsewhere."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        parts = scope["path"].split("/", 3) if scope["type"] == "http" else []
        if len(parts) < 4 or "/" + parts[1] not in NAMESPACES:
            await self.app(scope, receive, send)
            return
        scope["arrival"] = (now(), registrations)
        instance = f"/{parts[1]}/{parts[2]}"

        async def recording(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] == 503:
                write("gave-up", now(), id=instance)
            await send(message)

        await self.app(scope, receive, recording)


class Room(PinnedAPI):
    space = ""  # the namespace

    async def lifespan(self) -> AsyncIterator[None]:
        global lives
        lives += 1
        self.life = f"{PROCESS}/{lives}"
        self.count = 0
        self.epoch = 0
        self.heard = -1
        ticking = asyncio.create_task(self.watch())
        yield
        ticking.cancel()

    def stats(self) -> dict[str, Any]:
        return {}

    @route.post("/op")
    async def op(self, request: Request, op: int, slow: int = 0) -> dict[str, Any]:
        entered = now()
        if slow:
            await asyncio.sleep(slow / 1000)
        came, heard = request.scope["arrival"]
        epoch = int(request.headers["pinboard-epoch"])
        self.count += 1
        self.epoch, self.heard = max(self.epoch, epoch), max(self.heard, heard)
        write("served", came, entered=entered, end=now(), id=f"{self.space}/{self.id}", life=self.life, epoch=epoch, op=op, count=self.count)
        return {"process": PROCESS, "life": self.life, "epoch": epoch, "count": self.count}

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            at = now()
            if not self.lease.expired and self.heard == registrations:
                write("ticked", at, entered=now(), id=f"{self.space}/{self.id}", life=self.life, epoch=self.epoch)


def on_sigterm(server: uvicorn.Server, worker: PinnedWorker) -> None:
    stop = signal.SIGTERM
    asyncio.get_running_loop().add_signal_handler(stop, server.handle_exit, stop, None)
    worker.install_sigterm_drain(float(os.environ["APP_DRAIN"]))


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    registration.httpx = type("Recording", (), {**vars(httpx), "AsyncClient": RecordingClient})
    worker = PinnedWorker(
        pinboard_url=os.environ["APP_PINBOARD_URL"],
        token=os.environ["APP_TOKEN"],
        advertise_url=os.environ["APP_ADVERTISE_URL"],
        heartbeat_interval=float(os.environ["APP_HEARTBEAT"]),
        lease_buffer=float(os.environ["APP_BUFFER"]),
        headroom=lambda: 1024,
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        on_sigterm(server, worker)
        yield

    app = FastAPI(lifespan=lifespan)
    app.include_router(worker)
    for namespace in NAMESPACES:
        app.include_router(
            PinnedHost(
                type("Room", (Room,), {"space": namespace}), worker=worker, namespace=namespace,
                idle_timeout=float(os.environ["APP_IDLE"]), sweep_interval=0.5,
                max_concurrent_activations=32,
            )
        )
    app.add_middleware(Recorder)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    server.run(sockets=[socket.socket(fileno=3)])


if __name__ == "__main__":
    main()
