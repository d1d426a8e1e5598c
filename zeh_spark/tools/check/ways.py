"""The ways of asking for the same events, which must all bring them. Pure values.

Rule for editors: a way is here if some client asks so. Its rule tells what differs from the plain
way, which is `PLAIN`: one partition, in large pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from zeh_spark.tools.check.rules import Verdict


@dataclass(frozen=True, slots=True)
class Way:
    """A way of asking.

    Args:
        rule: the rule that it is judged by.
        what: what is special about it, in words.
        hint: the kind of pagesizehint: none, one, small (a fifth of what is known of the
            partition), hundred, or large (500). None has more than fit into a 256th of the bytes
            that may be read.
        more: more parameters.
        headers: the header fields of its requests, besides those that all have.
        pages: how many pages are read, at most.
        refused: the verdict if its first page is refused.
        n: the number of partitions; None for that of the feed.
    """

    rule: str
    what: str
    hint: str = "large"
    more: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    pages: int = 1
    refused: Verdict = Verdict.DEVIATION
    n: int | None = None


_GZIP = {"Accept-Encoding": "gzip"}

PLAIN = Way("first", "in large pages", pages=4, refused=Verdict.FAILURE)

WAYS = (
    Way("repeatable", "once more", refused=Verdict.FAILURE),
    Way("resume", "in small pages", "small", pages=8, refused=Verdict.FAILURE),
    Way("page-size-hint", "without pagesizehint", "none", pages=3),
    Way("page-size-hint", "with pagesizehint=1", "one", pages=5),
    Way("headers", "with headers=_all", "small", "headers=_all", pages=4),
    Way("compression", "packed with gzip", "small", headers=_GZIP, pages=3),
    Way("wait", "with wait=1", more="wait=1"),
    Way("content-type", "with Accept: */*", headers={"Accept": "*/*"}),
)
"""The ways in which a partition is read from its beginning."""

SMALL = next(way for way in WAYS if way.rule == "resume")
WITHIN = Way("resume", "from a checkpoint within a page", "small", refused=Verdict.FAILURE)
ONCE = replace(PLAIN, pages=1)
CONFIRMING = replace(PLAIN, pages=PLAIN.pages + 2)
AGAIN = Way("repeatable", "once more from a cursor", refused=Verdict.FAILURE)
OTHER_N = Way("n-mismatch", "with n=1, 2 and 4, all partitions together", pages=4)
PARALLEL = Way("parallel", "at the same time", refused=Verdict.FAILURE)
TOGETHER = Way("connection", "on one connection", "small")
PACKED = replace(TOGETHER, headers=_GZIP)
LAST = Way("last", "from _last", refused=Verdict.FAILURE)
WAITING = Way("wait", "from _last with wait=1", more="wait=1")
SEVERAL = (
    Way("several-cursors", "several partitions in large pages", pages=2),
    Way("several-cursors", "several partitions in small pages", "small", pages=3),
    Way("several-cursors", "several partitions with pagesizehint=1", "one", pages=2),
)

COMPARED = (*WAYS, WITHIN, AGAIN, *SEVERAL, OTHER_N, PARALLEL, TOGETHER)
"""All ways whose events are compared."""
