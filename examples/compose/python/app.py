"""A worker of the namespace /counters in Python, beside the Go example of that name.

It takes PINBOARD_URL, PINBOARD_TOKEN and ADVERTISE_URL from the environment,
listens on PORT (8000), and drains for DRAIN_SECONDS (30) on SIGTERM.
"""

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from typing import AsyncIterator

import uvicorn
from fastapi import FastAPI, Response
from pinned import PinnedAPI, PinnedHost, PinnedWorker, route


class Counter(PinnedAPI):
    async def lifespan(self) -> AsyncIterator[None]:
        self.count = 0
        yield

    @route.post("/increment")
    async def increment(self) -> Response:
        self.count += 1
        return Response(f"{self.id} {self.count}\n", media_type="text/plain")


worker = PinnedWorker(
    pinboard_url=os.environ["PINBOARD_URL"],
    token=os.environ["PINBOARD_TOKEN"],
    advertise_url=os.environ["ADVERTISE_URL"],
)


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    # The drain hands the signal on to the handler of the event loop, where
    # uvicorn does not put its own.
    stop = signal.SIGTERM
    asyncio.get_running_loop().add_signal_handler(stop, server.handle_exit, stop, None)
    worker.install_sigterm_drain(float(os.environ.get("DRAIN_SECONDS", "30")))
    yield


app = FastAPI(lifespan=lifespan)
app.include_router(worker)
app.include_router(PinnedHost(Counter, worker=worker, namespace="/counters"))


@app.get("/ready")
async def ready() -> Response:
    return Response(status_code=200 if worker.ready else 503)


port = int(os.environ.get("PORT", "8000"))
server = uvicorn.Server(uvicorn.Config(app, host="0.0.0.0", port=port))

if __name__ == "__main__":
    server.run()
