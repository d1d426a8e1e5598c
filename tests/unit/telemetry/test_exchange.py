"""Which ids of a request are taken from its headers."""

from tests.cases import each_case
from zeh_spark.service.telemetry.access_log import MOST, shown_target
from zeh_spark.service.telemetry.exchange import ids_in, trace_in

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@each_case("given", [b"a", b"7f3-A_b.c:9", b"x" * 100])
def test_a_valid_request_id_is_taken(given):
    assert (given.decode(), None) == ids_in([(b"host", b"x"), (b"x-request-id", given)])


@each_case("given", [b"", b"x" * 101, b"a b", b"a\nb", b"a\x00", b"\xc3\xa4", b'"a"'])
def test_any_other_request_id_is_replaced(given):
    """It would be written into logs and answers."""
    made, _ = ids_in([(b"x-request-id", given)])

    assert 16 == len(made)
    assert made != ids_in([])[0]


def test_a_trace_is_taken():
    value = f"00-{TRACE}-{SPAN}-01".encode()

    assert (TRACE, SPAN) == ids_in([(b"traceparent", value)])[1]
    assert (TRACE, SPAN) == trace_in(f"cc-{TRACE}-{SPAN}-01-more".encode())


@each_case(
    "value",
    [
        "", "00", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-01-more", f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE.upper()}-{SPAN}-01",
    ],
)  # fmt: skip
def test_a_trace_that_is_not_valid_is_left_out(value):
    assert trace_in(value.encode()) is None


@each_case(
    "query, shown",
    [
        ("", "/orders"),
        ("n=2&cursor0=_first&wait=1", "/orders?n=2&cursor0=_first&wait=1"),
        ("version=2&await=7.ab&time=9", "/orders?version=2&await=7.ab&time=9"),
        ("n=2&token=s3cret", "/orders?n=2&token=***"),
        ("n=2&cursor0x=s3cret&%6E=4", "/orders?n=2&cursor0x=***&%6E=4"),
        ("s3cret", "/orders?***"),
        ("n=2&cursor0=_first;token=s3cret", "/orders?n=2&cursor0=_first;***"),
        ("acceptGap=-1:7", "/orders?acceptGap=-1:7"),
    ],
)
def test_only_known_parameters_are_logged(query, shown):
    """A secret in an address does not get into the log, and a long target is cut."""
    assert shown == shown_target(b"/orders", query.encode())
    assert MOST + 1 == len(shown_target(b"/orders", b"cursor0=" + b"x" * 60_000))
