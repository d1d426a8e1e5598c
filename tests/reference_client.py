"""One page read with the reference client, run by the Python of `.venv-reference`. Not a test.

Usage: reference_client.py REQUEST, as JSON (see `fix_reference.reference_page`). Prints JSON:
events, checkpoints, error.
"""

import asyncio
import json
import sys

import httpx
import zeroeventhub

request = json.loads(sys.argv[1])
page = {"events": [], "checkpoints": [], "error": None}


async def main():
    cursors = [zeroeventhub.Cursor(int(each), at) for each, at in request["cursors"].items()]
    async with httpx.AsyncClient(timeout=request["timeout"]) as http:
        client = zeroeventhub.Client(request["url"], request["partition_count"], http)
        async for line in client.fetch_events(
            cursors, request["page_size_hint"], request["headers"]
        ):
            if isinstance(line, zeroeventhub.Cursor):
                page["checkpoints"].append([line.partition_id, line.cursor])
            else:
                page["events"].append([line.partition_id, line.headers, line.data])


try:
    asyncio.run(main())
except Exception as exc:  # noqa: BLE001 - whatever it was is the answer to the test's question
    page["error"] = f"{type(exc).__name__}: {exc}"
json.dump(page, sys.stdout)
