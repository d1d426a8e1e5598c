"""Read a feed with the reference client (run by the Python of `.venv-reference`): URL EVENTS.
Prints JSON.
"""

import asyncio
import json
import sys
import time

import httpx
import zeroeventhub

url, events = sys.argv[1], int(sys.argv[2])


async def main():
    read, began = 0, time.monotonic()
    async with httpx.AsyncClient(timeout=60) as http:
        client = zeroeventhub.Client(url, 4, http)
        for partition in range(4):
            cursor, before = "_first", -1
            while read < events and before != cursor:
                before = cursor
                at = [zeroeventhub.Cursor(partition, cursor)]
                async for line in client.fetch_events(at, 10_000, ["_all"]):
                    if isinstance(line, zeroeventhub.Cursor):
                        cursor = line.cursor
                    else:
                        read += 1
    print(json.dumps({"events": read, "seconds": time.monotonic() - began}))


asyncio.run(main())
