"""A feed of the reference implementation, run by the Python of `.venv-reference`, which has it. Not
a test.

Usage: reference_server.py SETTINGS, as JSON (see `fix_reference.ReferenceServer`). It serves the
socket that it was given.
"""

import json
import socket
import sys

import uvicorn
from fastapi import FastAPI, Request
from zeroeventhub import ZeroEventHubFastApiHandler

settings = json.loads(sys.argv[1])
app = FastAPI()


class Reader:
    """Events {"id": 0}, {"id": 1}, … in each partition; a cursor is the last event's id."""

    failures_left = settings["failures"]

    async def get_data(self, cursors, headers, page_size):
        events = 0
        for cursor in cursors:
            at = {"_first": -1, "_last": settings["events"] - 1}.get(cursor.cursor)
            at = int(cursor.cursor) if at is None else at
            for i in range(at + 1, min(settings["events"], at + 1 + (page_size or 100))):
                if self.failures_left and events == settings["fail_after"]:
                    self.failures_left -= 1
                    raise RuntimeError("told to fail in the middle of a body")
                at = i
                events += 1
                named = {name: f"value {i}" for name in headers or []}
                own, data = settings["rows"][i] if settings["rows"] else (named, {"id": i})
                yield {"partition": cursor.partition_id, "headers": own, "data": data}
                if settings["checkpoints"] == "event":
                    yield {"partition": cursor.partition_id, "cursor": str(at)}
            yield {"partition": cursor.partition_id, "cursor": str(at)}


handler = ZeroEventHubFastApiHandler(Reader(), settings["partitions"])


@app.get("/feed/v1")
async def feed(request: Request):
    return handler.handle(request)


server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
server.run(sockets=[socket.socket(fileno=settings["socket"])])
