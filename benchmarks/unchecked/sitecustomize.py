"""Switches off all that makes publishing effectively once, but not the check that it is JSON.

On the PYTHONPATH of a Spark and a publisher that are measured against the real ones.
"""

import types

from zeh_spark import publish
from zeh_spark.protocol import upload_format
from zeh_spark.publisher import publish_requests, upload_validation
from zeh_spark.store import batches, commit_decision

_NO_DIGEST = types.SimpleNamespace(
    sha256=lambda data=b"": types.SimpleNamespace(digest=lambda: b"%032d" % len(data))
)


def _unsummed(rests):
    return upload_format.Content(len(rests), 0)


def _unquestioned(known, call, declared=None, found=None):
    if declared is None:
        return commit_decision.Step.STAGE
    return commit_decision.Step.MOVE if found is None else commit_decision.Step.PUBLISH


for module in (upload_format, upload_validation):
    module.content_of = _unsummed
for module in (upload_format, publish, upload_validation):
    module.hashlib = _NO_DIGEST
commit_decision.decide = _unquestioned
publish_requests.check_digest = lambda header, body: None
batches.chained = lambda receipt: ""
