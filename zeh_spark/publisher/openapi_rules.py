"""The rules of publishing, in words and worked examples, for the description of the API.

Rule for editors: limits and patterns come from the code. The examples are literal, because what
they show may never change; tests/unit/publisher/test_openapi.py compares them with what the code
computes.
"""

from __future__ import annotations

from typing import Any

from zeh_spark.protocol import wire
from zeh_spark.protocol.upload_format import CHUNK_BYTES, CHUNK_EVENTS, DIGEST_VERSION, LINE_BYTES
from zeh_spark.publisher.publish_api import STAGING_QUOTA
from zeh_spark.publisher.upload_validation import MAX_BODY, MAX_CHUNKS, MAX_UNPACKED
from zeh_spark.store.batches import MAX_NUMBER, RECEIPTS
from zeh_spark.store.interface import IDLE, STAGED_FOR

GENERAL = """
ZeroEventHub feeds: reading them (the protocol of that name), and publishing to them (this server's
extension). All text is UTF-8. Names in a path are percent-encoded: the `#` of a producer as `%23`.
Numbers are decimal digits without sign.

**Refusals** are problem documents (RFC 9457). A program compares `type`, and goes by the status
where it does not know the type; facts are members of the document; `detail` is for people and may
change.

**Trying again.** After a network error, an answer that broke off, 408, 425, 429 or 5xx (`x-retry`
in the schema of a problem), send the same call again, byte for byte: after `Retry-After` seconds if
that is there, else after pauses that grow. Every call may be sent again, also one whose answer was
lost, and one that is still under way: nothing is published twice. Other 4xx are final, unless the
problem says otherwise.
"""

PUBLISHING = f"""
**Words**, all chosen by the client:

- A *producer* is a name under which a sequence of batches is published, for ever the same:
  `{wire.NAME.pattern}`. Avoid `.` and `..`, which clients take out of addresses.
- An *incarnation* is the producer's memory of where it is (a Spark checkpoint's id, say). Whoever
  starts with a new or emptied memory takes a new one, so that its batch 0 is not taken for the old
  one's. A new incarnation does not follow by itself, see case 2.
- A *run* is one start of the writer: a random name, new at each start. Both: letters, digits, `_`
  and `-`, 1 to 100.
- *Batches* of an incarnation are numbered 0, 1, 2, …, at most {MAX_NUMBER}, without gaps; the next
  one is committed after the one before. A batch that is repeated has to have the same events.
- *n* is the feed's number of stored partitions. A repeated batch may be made for another n.
- A *task* makes a part of a batch, an *attempt* is one try at that: numbers, attempts any. One task
  0 with attempt 0 is enough.

Two conventions. For a batch that has a name and no sequence: producer `P#K`, where K is the batch's
name in the same form, incarnation `{wire.BATCH_INCARNATION}`, batch 0. For a producer without a
memory: incarnation `{wire.PLAIN_INCARNATION}`, batch = `lastBatch` + 1 of GET producer, if its
incarnation is null or `{wire.PLAIN_INCARNATION}`. Such a producer cannot tell a batch that is begun
again from a new one; and where the receipt's run is not its own, somebody else took the number at
the same time, with the same events.

**A batch**, step by step. 1. GET the batch, with the incarnation. 200: it is committed; go on with
3 if the content shall be compared, naming no attempts. 404 `unknown-batch`: `partitionCount` is n,
`feedId` the same under each address of a feed.
410 `batch-expired`: stop.
2. PUT its uploads, several at a time if you like. An answer `already-committed` says that no more
is needed. 3. POST the commit, with the content of the whole batch, also if it is empty. Only its
answer says that the batch is published; a first answer `committed` and a later one
`already-committed` mean the same. Where a batch is given up, DELETE its uploads; those that nobody
asked about for {STAGED_FOR / 3600:g} hours go by themselves, and after {IDLE / 60:g} minutes if the
producer's quota ({STAGING_QUOTA >> 30} GiB unless the publisher is told otherwise) is used up.
What is staged is seen by no reader.

**A line** is an event as it is stored, in exactly this form and order, without blanks outside of
`data` and of strings: `{{"partition":P,"headers":{{H}},"data":D}}`. P is the stored partition, 0 to
n - 1. H are members text by text with commas between them, none twice, perhaps none, none whose
name begins `{wire.RESERVED_HEADER}`; sort them by name, so that a repetition has the same bytes. D
is any JSON (RFC 8259) but null, with blanks as you like but neither CR nor LF; it is served as it
is. Halves of surrogate pairs are refused, and more than {wire.MAX_DEPTH} arrays and objects within
each other. UTF-8;
no escapes in the three names; at most {LINE_BYTES:,} bytes without its LF.

**A chunk** is 1 to {CHUNK_EVENTS:,} lines of one partition, each ended by one LF, together at most
{CHUNK_BYTES:,} bytes, compressed as one zstd frame that states its content's size, needs no
dictionary, and has nothing behind it. Reading is faster the fewer and larger chunks are.

**An upload** is a line with a JSON array, ended by the body's first LF, then the chunks' frames in
the array's order, with nothing between or behind. The array has an object for each chunk, with
exactly these integers: `partition`; `events`, its lines; `size`, bytes of the lines, each with its
LF; `bytes`, those of the frame. At most {MAX_BODY:,} bytes in all, {MAX_CHUNKS:,} chunks, and
{MAX_UNPACKED:,} bytes of lines; about 4 MiB is a good size. Example:
`#/components/examples/upload`.

**Content.** The *rest* of a line is what stands behind `{{"partition":P,`, without the LF. A
batch's content is `events`, the number of its lines, and `digest`: the sum of the xxh3_128 (seed 0)
of the rests of all its lines, modulo 2^128, big-endian, as 32 lower-case hex digits. So neither
order, nor partitions, nor how tasks share the work changes it. That is digest version
{DIGEST_VERSION}; declare it. Example: `#/components/examples/content`.

**Keys.** Where events of one key shall stay together, the partition is the xxh3_64 (seed 0) of the
key's UTF-8 text modulo n. Example: `#/components/examples/key`.

**Order.** A batch's events stand in each partition in the order of task, number of the upload,
chunk in the upload, line in the chunk; those of the next batch behind them. So are sequence numbers
given: by producer and stored partition, from 0, without gaps, going on from batch to batch and from
incarnation to incarnation. All partitions of a batch become visible at once.

**The decision.** Each upload and each commit is decided upon in this order; *last* is the last
batch of the call's own incarnation, -1 if there is none.

1. The producer was deleted: `producer-deleted`.
2. It has committed, and its current incarnation is not the call's: `incarnation-changed`, unless
   `replaceIncarnation` is right.
3. The call's run has committed in this incarnation, and another run has since: `fenced`, unless
   the call's run committed this very batch, with the same content if the call is a commit.
4. The batch is not greater than *last*: it was committed before.
   a. Its receipt is not kept any more: `batch-expired`. An upload otherwise: `already-committed`.
   b. The commit declares another digest version than the receipt has: `digest-version`.
   c. The same events and digest: `already-committed`, with the receipt of then; attempts and n do
      not matter.
   d. Its incarnation is `{wire.PLAIN_INCARNATION}`: `number-taken`, by somebody else.
   e. `keepFirst` is right: as c.
   f. Else `batch-conflict`.
5. The batch is not *last* + 1: `batch-gap`, unless `acceptGap` is right.
6. n is not the feed's: `layout-changed`. An upload otherwise: `staged`, unless it is
   `upload-conflict` or `quota-exceeded`.
7. The commit declares a digest version that is not counted with here: `digest-version`.
8. For a task that the commit names, there are not as many uploads and events staged, by this
   producer, incarnation, run, batch, task and attempt: `upload-missing`.
9. The content of the uploads named is not the one declared: `content-mismatch`.
10. Else the batch is published: `committed`. What else is staged for it, by other attempts or runs,
   is dropped.

What is refused changes nothing; uploads stay staged.

**Overrides** are parameters by which an operator allows once what would be refused. Each names both
sides as the problem's `option` prints it, acts only where the publisher would print exactly that at
this moment, and is ignored otherwise: so it cannot act twice, and may be left in place. Give it
with all calls of the batch, uploads and commit. A client never sets one by itself.

- `acceptGap=<incarnation>@<last>:<batch>`, like `a1b2@7:9`; `a1b2@-1:9` at first contact.
- `replaceIncarnation=<current>@<its last batch>:<the call's>`.
- `keepFirst=<incarnation>:<batch>:<first 8 hex digits of the published digest>`; of incarnation
  `{wire.BATCH_INCARNATION}`, whose batches can come again for ever,
  `keepFirst=<producer>:<batch>:<those digits>:<the same of the digest that came now>`.

**Receipts.** The newest {RECEIPTS:,} of a producer are kept, over all its incarnations. `hash` is
the SHA-256, in lower-case hex, of the receipt as JSON with all its members, `hash` the empty text,
the names in every object sorted, without blanks; `previous` is the `hash` of the receipt with the
`number` before, the empty text in the first one. So who keeps the newest `hash` (`chain` of the
producer) can prove all receipts behind it. Example: `#/components/examples/receipts`.
"""

_DIGEST = "47c20ca9245316b79ca418a7ec6f9fdc"
_RECEIPT = {
    "number": 1,
    "producer": "shop",
    "incarnation": "4f1c0d9e",
    "batch": 0,
    "run": "a7",
    "level": 1,
    "events": 2,
    "digest": _DIGEST,
    "digestVersion": 1,
    "partitionCount": 2,
    "ranges": [
        {"partition": 0, "first": 0, "last": 0, "cursor": "1.5e2f1a90"},
        {"partition": 1, "first": 0, "last": 0, "cursor": "2.c41b07d3"},
    ],
    "positions": [1, 2],
    "time": 1795000000000,
    "previous": "",
    "hash": "4c967172490968b0617c2b3e784d339e6c1acc579d5c764851819fb7eabb0e0b",
}
_EMPTY_RECEIPT = {
    **_RECEIPT,
    "number": 2,
    "batch": 1,
    "events": 0,
    "digest": "00000000000000000000000000000000",
    "ranges": [],
    "positions": None,
    "time": 1795000060000,
    "previous": _RECEIPT["hash"],
    "hash": "21fd002163e5eea19158657e417b7f77815a266bdb8e4e398050df8283268568",
}
_HASHED = (
    '{"batch":1,"digest":"00000000000000000000000000000000","digestVersion":1,"events":0,"hash":"",'
    '"incarnation":"4f1c0d9e","level":1,"number":2,"partitionCount":2,"positions":null,"previous":'
    '"4c967172490968b0617c2b3e784d339e6c1acc579d5c764851819fb7eabb0e0b","producer":"shop",'
    '"ranges":[],"run":"a7","time":1795000060000}'
)

EXAMPLES: dict[str, Any] = {
    "content": {
        "summary": "A batch of two events; the sum of the hashes passes 2^128",
        "value": {
            "lines": [
                '{"partition":0,"headers":{"ce_id":"1"},"data":{"id":1}}',
                '{"partition":1,"headers":{},"data":"ä"}',
            ],
            "rests": ['"headers":{"ce_id":"1"},"data":{"id":1}}', '"headers":{},"data":"ä"}'],
            "xxh3_128": ["f2ea5b4f846efa3e53b3eae1732f1608", "54d7b1599fe41c7948f02dc6794089d4"],
            "events": 2,
            "digest": _DIGEST,
        },
    },
    "upload": {
        "summary": "The same batch as the body of one upload; zstd may pack it otherwise",
        "value": {
            "index": '[{"partition":0,"events":1,"size":56,"bytes":65},'
            '{"partition":1,"events":1,"size":41,"bytes":50}]',
            "body, base64": "W3sicGFydGl0aW9uIjowLCJldmVudHMiOjEsInNpemUiOjU2LCJieXRlcyI6NjV9LHsicG"
            "FydGl0aW9uIjoxLCJldmVudHMiOjEsInNpemUiOjQxLCJieXRlcyI6NTB9XQootS/9IDjBAQB7InBhcnRpdGl"
            "vbiI6MCwiaGVhZGVycyI6eyJjZV9pZCI6IjEifSwiZGF0YSI6eyJpZCI6MX19Cii1L/0gKUkBAHsicGFydGl0"
            "aW9uIjoxLCJoZWFkZXJzIjp7fSwiZGF0YSI6IsOkIn0K",
            "Content-Digest": "sha-256=:tNRwH2hI3eqgEwwAeuY7lNofaCiGMd6Cvy4AU/Tef9s=:",
        },
    },
    "key": {
        "summary": "Where events of a key go",
        "value": {"key": "käufer-17", "xxh3_64": "4e27b51dd2ba21a1", "n": 12, "partition": 5},
    },
    "receipts": {
        "summary": "The receipts of that batch and of an empty one behind it; `hashed` is the text "
        "whose SHA-256 is the second one's hash",
        "value": {"receipts": [_RECEIPT, _EMPTY_RECEIPT], "hashed": _HASHED},
    },
}
