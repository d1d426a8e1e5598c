"""Switches off all that makes publishing effectively once, but not the check that it is JSON.

On the PYTHONPATH of a Spark and a publisher that are measured against the real ones.
"""

import types

from zeh_spark import chunks, publish
from zeh_spark.publisher import batches, calls, producers, uploads

_NO_DIGEST = types.SimpleNamespace(
    sha256=lambda data=b"": types.SimpleNamespace(digest=lambda: b"%032d" % len(data))
)


def _unsummed(rests):
    return chunks.Content(len(rests), 0)


def _unquestioned(known, call, declared=None, found=None):
    if declared is None:
        return producers.Step.STAGE
    return producers.Step.MOVE if found is None else producers.Step.PUBLISH


for module in (chunks, uploads):
    module.content_of = _unsummed
for module in (chunks, publish, uploads):
    module.hashlib = _NO_DIGEST
producers.decide = _unquestioned
calls.check_digest = lambda header, body: None
batches.chained = lambda receipt: ""
