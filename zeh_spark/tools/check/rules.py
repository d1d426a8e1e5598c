"""The rules that a publisher is judged by, and the verdicts. Pure values.

Rule for editors: a rule is a deviation if clients of one kind fail or need an option, and a failure
if readers lose events, get them twice, or cannot read. `SOURCE` is a heading of the specification
(SPEC.md of vippsas/zeroeventhub); a rule that the specification does not state gives its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum


class Verdict(str, Enum):
    """The judgement of one rule, from what says least to what is worst."""

    SKIPPED = "skipped"
    PASS = "pass"
    NOTE = "note"
    DEVIATION = "deviation"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule."""

    id: str
    title: str
    source: str
    remedy: str


@dataclass(slots=True)
class Finding:
    """The judgement of a rule, with what was found."""

    rule: Rule
    verdict: Verdict = Verdict.SKIPPED
    found: str = "not tested: what it needs did not come up"
    times: int = 0

    def add(self, verdict: Verdict, found: str) -> None:
        """Count another verdict. The worst one stays, with what was found first for it."""
        order = list(Verdict)
        if order.index(verdict) > order.index(self.verdict):
            self.verdict, self.found, self.times = verdict, found, 1
        elif verdict is self.verdict:
            self.times += 1

    @property
    def told(self) -> bool:
        """Whether there is something to do, or to know."""
        return self.verdict in (Verdict.NOTE, Verdict.DEVIATION, Verdict.FAILURE)

    def document(self) -> dict[str, object]:
        said: dict[str, object] = {
            "rule": self.rule.id,
            "verdict": self.verdict.value,
            "title": self.rule.title,
            "found": self.found,
            "times": self.times,
            "source": self.rule.source,
        }
        if self.told:
            said["remedy"] = self.rule.remedy
        return said


_PARAMETERS = 'spec, "Parameters"'
_RESPONSE = 'spec, "Response"'
_EVENTS = 'spec, "Events"'
_CHECKPOINT = 'spec, "Checkpoint"'
_PARTITIONS = 'spec, "Number of partitions"'
_HTTP = "HTTP (RFC 9110, RFC 9112)"

RULES = (
    Rule("encrypted", "credentials travel encrypted",
         "RFC 6750, 5.3: a bearer token needs TLS",
         "Serve the feed over https, or read it on the machine itself."),
    Rule("address", "the address answers itself, without a redirect",
         "the Python client follows no redirect, and clients send no token to another origin",
         "Give readers the address that the redirect leads to."),
    Rule("n-missing", "a request without n is refused with 400",
         f"{_PARAMETERS}: n; a client tells FeedAPI 1 from FeedAPI 2 by it",
         "Answer 400. For a feed of FeedAPI 2, ask its owner for an address of FeedAPI 1."),
    Rule("partitions", "the number of partitions is known",
         _PARTITIONS,
         "Document the number, and give it as --partitions here and as partitionCount in Spark."),
    Rule("n-mismatch", "another n is refused with 400, or brings the same events",
         f"{_PARTITIONS}; {_PARAMETERS}: n",
         "Answer 400, so that a reader with a wrong number stops. Or give each event to one of n."),
    Rule("cursor-missing", "a request without a cursor is refused with 400",
         f"{_PARAMETERS}: cursorN",
         "Answer 400."),
    Rule("partition-unknown", "a cursor of a partition that does not exist is refused with 400",
         f"{_PARAMETERS}: cursorN, where N is in the range 0 to n-1",
         "Answer 400. A reader with a wrong number of partitions notices nothing otherwise."),
    Rule("cursor-unknown", "a cursor that the publisher never sent is refused with 400, 409 or 410",
         "a reader with the cursor of another feed, or of a restored one, must not go on silently",
         "Check cursors before the answer begins, and answer 400, 409 or 410, not 5xx or 200."),
    Rule("first", "_first begins at the beginning of every partition",
         f"{_PARAMETERS}: cursorN, _first",
         "Answer 200 to _first for each partition."),
    Rule("last", "_last is accepted, and answered with a checkpoint near the end",
         f"{_PARAMETERS}: cursorN, _last; without a checkpoint a reader cannot keep its start",
         "Send a checkpoint also if there are no events. Readers can begin at _first instead."),
    Rule("page-size-hint", "any pagesizehint, or none, brings the same events, about as many",
         f"{_PARAMETERS}: pagesizehint",
         "Choose a default, and limit a page to about the hint. End it with the checkpoint of its "
         "last event."),
    Rule("headers", "headers come if they are asked for, and change nothing else",
         f"{_PARAMETERS}: headers",
         "Leave headers out without the parameter, accept headers=_all, and send all events."),
    Rule("several-cursors", "several partitions in one request bring what each brings alone",
         f'{_PARAMETERS}: cursorN; spec, "Partitions"',
         "Use each partition's own cursor. Readers can ask for one at a time, as zeh-spark does."),
    Rule("content-type", "the answer is application/x-ndjson in UTF-8, whatever Accept says",
         f"{_RESPONSE}: new-line-delimited JSON",
         "Send Content-Type: application/x-ndjson. Most clients look at its charset only."),
    Rule("framing", "the end of an answer shows that nothing is missing",
         f"{_HTTP}; a broken connection otherwise looks like the end of the feed",
         "Send Content-Length, or chunks with the last one. On errors, break the connection off."),
    Rule("connection", "the answers to several requests on one connection do not touch each other",
         f"{_HTTP}; clients keep connections open",
         "Let Content-Length count bytes, not characters, and send nothing after them."),
    Rule("parallel", "requests at the same time have the answers that each has alone",
         "clients read several partitions at the same time",
         "Keep what belongs to a request out of variables that requests share."),
    Rule("compression", "the answer is compressed only on request, and is complete then",
         f"{_HTTP}: Accept-Encoding",
         "Look for a proxy that packs answers without being asked, or cuts them. Send one member."),
    Rule("utf-8", "the answer is UTF-8 without a byte order mark",
         "JSON (RFC 8259, 8.1)",
         "Encode JSON as UTF-8. Clients stop at anything else."),
    Rule("line-ends", "lines end with a newline alone, and none is blank",
         f"{_RESPONSE}: ndjson.org; the Python and .NET clients fail on a blank line with spaces",
         "Write one JSON object and \\n for each line."),
    Rule("json", "each line is a JSON object",
         f"{_RESPONSE}: each line is an event or a checkpoint",
         "Send valid JSON: null instead of NaN. Do not report errors as text in the answer: break "
         "the connection off."),
    Rule("keys", "names are there once, and those of a line have no escapes",
         "JSON (RFC 8259, 4): clients take the first value, or the last, or refuse both; those "
         "that look for the bytes of a name do not find it with escapes",
         "Send each name once, and partition, headers, data and cursor as plain text."),
    Rule("known-lines", "each line is an event or a checkpoint",
         f"{_RESPONSE}; the Go client takes an unknown line for an empty event",
         "Leave other lines out."),
    Rule("line-length", "no line is longer than 65,535 bytes",
         "the Go client stops there without an error, and the rest of the answer is lost",
         "Keep large data elsewhere, and send its address."),
    Rule("partition", "each line names its partition, as an integer that was asked for",
         f"{_EVENTS}; {_CHECKPOINT}",
         "Send the partition of the request as a JSON number."),
    Rule("data", "each event has data",
         f"{_EVENTS}; the Python client fails without data, the .NET client also for null",
         "Send data that is not null."),
    Rule("header-values", "headers are an object of strings",
         f"{_EVENTS}: headers",
         "Send each header's value as a JSON string, and {} or nothing if there are none."),
    Rule("cursor", "a checkpoint's cursor is a string of printable ASCII, and no special cursor",
         f"{_CHECKPOINT}; {_PARAMETERS}: cursorN",
         "Send opaque, non-empty strings. From a special cursor, readers would begin anew."),
    Rule("cursor-alone", "a checkpoint has no data",
         f"{_RESPONSE}: a line is an event or a checkpoint; all clients drop the data",
         "Send the event and its checkpoint as two lines."),
    Rule("checkpoint", "a checkpoint follows the events of each page",
         f"{_CHECKPOINT}; events without one cannot be delivered exactly once",
         "End each page with a checkpoint of each partition."),
    Rule("progress", "a page with events leads to a cursor that was not used before",
         f"{_CHECKPOINT}; otherwise readers read the same events for ever",
         "Send checkpoints that move on with each page."),
    Rule("resume", "reading continues after a checkpoint, without loss and without repetition",
         f"{_CHECKPOINT}: the client follows the stream from a checkpoint",
         "Return exactly the events after the cursor."),
    Rule("repeatable", "the same cursor brings the same events again",
         f"{_CHECKPOINT}: order and cursors may differ; readers repeat a page after a crash",
         "Keep no position of a reader. In Spark, set stagingLocation if order or cursors differ."),
    Rule("idle", "the end of a partition is answered with a checkpoint",
         "clients that continue with the checkpoints of the last page have none otherwise",
         "Send the cursor of the request as checkpoint if there are no events."),
    Rule("wait", "wait is followed in seconds, or ignored, and brings the same events",
         'spec, "Possible future extension: Long-polling"',
         "Wait at most as many seconds as asked."),
    Rule("contract", "the events that were read keep the feed's schema",
         "readers take the columns of their table from it (zeh_spark.feed_schema)",
         "Such events are older than the schema, or than a change with --compatibility none. "
         "parsed(…, rescued=True) keeps what does not fit."),
    Rule("limits", "the feed can be judged within the limits of time and bytes",
         "this command's --timeout and --max-bytes",
         "Raise --timeout or --max-bytes, or ask the publisher's owner why answers take so long."),
)  # fmt: skip
"""All rules, in the order in which they are printed."""


@dataclass(slots=True)
class Judgement:
    """The findings of one publisher."""

    partitions: int | None = None
    events: int = 0
    requests: int = 0
    bytes: int = 0
    _findings: dict[str, Finding] = field(
        default_factory=lambda: {rule.id: Finding(rule) for rule in RULES}
    )

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._findings.values())

    def __getitem__(self, rule: str) -> Finding:
        return self._findings[rule]

    def count(self, verdict: Verdict) -> int:
        return sum(each.verdict is verdict for each in self)

    def passes(self, rule: str, found: str) -> None:
        self[rule].add(Verdict.PASS, found)

    def notes(self, rule: str, found: str) -> None:
        self[rule].add(Verdict.NOTE, found)

    def deviates(self, rule: str, found: str) -> None:
        self[rule].add(Verdict.DEVIATION, found)

    def fails(self, rule: str, found: str) -> None:
        self[rule].add(Verdict.FAILURE, found)
