"""The application of the end-to-end tests, on the Python worker client.

Each instance counts, keeps a blob, streams events, echoes a WebSocket, tells
who called it and calls others. What happens to instances is told on standard
output, one JSON object a line, so that a test need not ask a process that may
be frozen. The goworker beside this file has the same routes.

Environment:

    APP_PINBOARD_URL, APP_TOKEN   where to register, and with which token
    APP_NAMESPACES                comma-separated, each with a leading slash
    APP_HEADROOM                  what is reported until /control/headroom
    APP_HEARTBEAT, APP_BUFFER     seconds
    APP_DRAIN                     on SIGTERM: "" shuts down plainly, a number of
                                  seconds drains first, for at most that long
    APP_FORGETFUL                 namespaces whose instances end when idle, while
                                  their placement is kept
    APP_HOSTNAME, APP_ENV,
    APP_TAKEOVER                  as the arguments of those names, "" for none
    APP_EPOCH                     the worker epoch
"""

import asyncio
import hashlib
import json
import logging
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator

import uvicorn
from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.responses import StreamingResponse
from pinned import Attestation, PinnedAPI, PinnedHost, PinnedWorker, attestation, route
from starlette.requests import HTTPConnection


def tell(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def caller(conn: HTTPConnection) -> dict[str, Any]:
    who = attestation(conn)
    match who:
        case Attestation.Instance(ns, id):
            return {"kind": "instance", "ns": ns, "id": id, "depth": who.depth}
        case Attestation.Account(sub):
            return {
                "kind": "account",
                "sub": sub,
                "scopes": sorted(who.scopes),
                "claims": who.claims,
            }
    return {"kind": "anonymous"}


class Room(PinnedAPI):
    async def lifespan(self) -> AsyncIterator[None]:
        self.count = 0
        self.blob = b""
        self.turns = asyncio.Semaphore(0)
        self.let_go = asyncio.Event()
        tell("open", id=self.id)
        yield
        tell("close", id=self.id)

    def stats(self) -> dict[str, Any]:
        # The inherited one returns None, on which the client's stats route fails.
        return {}

    def state(self, conn: HTTPConnection) -> dict[str, Any]:
        return {
            "id": self.id,
            "pid": os.getpid(),
            "epoch": int(conn.headers["pinboard-epoch"]),
            "count": self.count,
            "windingDown": self.lease.winding_down,
        }

    @route.get("/state")
    async def get_state(self, request: Request) -> dict[str, Any]:
        return self.state(request)

    @route.post("/add")
    async def add(self, request: Request) -> dict[str, Any]:
        self.count += 1
        tell("add", id=self.id, count=self.count)
        return self.state(request)

    @route.put("/blob")
    async def put_blob(self, request: Request) -> dict[str, Any]:
        parts = [part async for part in request.stream()]
        self.blob = b"".join(parts)
        return {"bytes": len(self.blob), "sha256": hashlib.sha256(self.blob).hexdigest()}

    @route.get("/blob")
    async def get_blob(self) -> Response:
        return Response(self.blob, media_type="application/octet-stream")

    @route.get("/events")
    async def events(self) -> StreamingResponse:
        """The first event at once, each further one after a POST to /next."""

        async def stream() -> AsyncIterator[str]:
            number = 0
            while True:
                yield f"data: {number}\n\n"
                await self.turns.acquire()
                number += 1

        return StreamingResponse(stream(), media_type="text/event-stream")

    @route.post("/next")
    async def next(self) -> dict[str, Any]:
        self.turns.release()
        return {}

    @route.websocket("/socket")
    async def socket(self, ws: WebSocket) -> None:
        await ws.accept()
        while True:
            message = await ws.receive()
            if message["type"] == "websocket.disconnect":
                return
            if message.get("text") is not None:
                await ws.send_text(message["text"])
            else:
                await ws.send_bytes(message["bytes"])

    @route.post("/hold")
    async def hold(self) -> dict[str, Any]:
        """Start work that ends with a POST to /let-go, or when it is cut."""
        self.let_go.clear()
        self.create_task(self.work())
        return {}

    async def work(self) -> None:
        await self.let_go.wait()

    @route.post("/let-go")
    async def end_hold(self) -> dict[str, Any]:
        self.let_go.set()
        return {}

    @route.get("/who")
    async def who(self, request: Request) -> dict[str, Any]:
        return caller(request) | {"authorization": request.headers.get("authorization")}

    @route.get("/headers")
    async def headers(self, request: Request) -> dict[str, Any]:
        """Tell who called, and what headers the application sees."""
        pairs = [[name, value] for name, value in request.headers.items()]
        return {"who": caller(request), "headers": pairs}

    @route.post("/relay")
    async def relay(self, request: Request) -> dict[str, Any]:
        """Tell who called, and relay the rest of the path in the body."""
        hops = await request.json()
        answer: dict[str, Any] = {"pid": os.getpid(), "who": caller(request)}
        if hops:
            res = await self.cluster.post(hops[0] + "/relay", json=hops[1:])
            answer["status"] = res.status_code
            answer["next"] = res.json()
        return answer


class Control:
    """What a test may ask the process directly, beside pinboard."""

    def __init__(self) -> None:
        self.headroom = int(os.environ["APP_HEADROOM"])
        self.reports = 0  # of this headroom, one with each heartbeat

    def report(self) -> int:
        self.reports += 1
        return self.headroom

    def mount(self, app: FastAPI, worker: PinnedWorker) -> None:
        @app.post("/control/headroom")
        async def headroom(request: Request) -> dict[str, Any]:
            self.headroom = await request.json()
            self.reports = 0
            return {}

        @app.get("/control/reports")
        async def reports() -> int:
            return self.reports

        @app.get("/control/secret")
        async def secret() -> str:
            return worker.secret


def on_sigterm(server: uvicorn.Server, worker: PinnedWorker) -> None:
    """Drain, then stop as uvicorn would have. The client's drain hands over to
    the handler that the event loop has, and uvicorn installs its own elsewhere."""
    stop = signal.SIGTERM
    asyncio.get_running_loop().add_signal_handler(stop, server.handle_exit, stop, None)
    worker.install_sigterm_drain(float(os.environ["APP_DRAIN"]))


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    control = Control()
    worker = PinnedWorker(
        pinboard_url=os.environ["APP_PINBOARD_URL"],
        token=os.environ["APP_TOKEN"],
        advertise_url=url,
        heartbeat_interval=float(os.environ["APP_HEARTBEAT"]),
        lease_buffer=float(os.environ["APP_BUFFER"]),
        headroom=control.report,
        hostname=os.environ["APP_HOSTNAME"] or None,
        env=os.environ["APP_ENV"] or None,
        takeover=os.environ["APP_TAKEOVER"] or None,
        epoch=int(os.environ["APP_EPOCH"]),
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        if os.environ["APP_DRAIN"]:
            on_sigterm(server, worker)
        tell("ready", url=url)
        yield

    app = FastAPI(lifespan=lifespan)
    app.include_router(worker)
    forgetful = os.environ["APP_FORGETFUL"].split(",")
    for namespace in os.environ["APP_NAMESPACES"].split(","):
        ending = (
            {"idle_timeout": 0.1, "sweep_interval": 0.05, "release_placement_on_idle": False}
            if namespace in forgetful
            else {}
        )
        app.include_router(PinnedHost(Room, worker=worker, namespace=namespace, **ending))
    control.mount(app, worker)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    server.run(sockets=[listener])


if __name__ == "__main__":
    main()
