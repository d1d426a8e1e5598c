"""Sessions of browsers: how long they last, and what their forms bring back."""

from __future__ import annotations

from types import SimpleNamespace

from starlette.requests import Request
from starlette.responses import Response

from tests.cases import each_case
from zeh_spark.service.console.sessions import (
    IDLE_SECONDS,
    SESSION_SECONDS,
    SESSIONS,
    SESSIONS_OF_ONE,
    Sessions,
)


def request(cookie: str = "", scheme: str = "http", **headers: str) -> Request:
    given = {"host": "127.0.0.1:8080", "cookie": cookie, **headers}
    return Request({
        "type": "http", "method": "GET", "path": "/console", "query_string": b"", "scheme": scheme,
        "server": ("127.0.0.1", 8080),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    })  # fmt: skip


def begun(sessions: Sessions, token: str = "zeh_token", client: str = "", **how: str) -> str:
    """Begin a session; return what the browser sends as its cookie."""
    answer = Response()
    sessions.begin(request(**how), answer, token, client or token)
    return answer.headers["set-cookie"].partition(";")[0]


def test_a_session_shows_the_token_that_began_it() -> None:
    """A header precedes it."""
    sessions = Sessions()

    assert "Bearer zeh_token" == sessions.credential(request(begun(sessions)))
    assert "" == sessions.credential(request("zeh_console_8080=guessed"))
    assert "Bearer own" == sessions.credential(request(begun(sessions), authorization="Bearer own"))


@each_case(
    ("steps", "is_there"),
    [
        ([IDLE_SECONDS - 1], True),
        ([IDLE_SECONDS + 1], False),
        ([IDLE_SECONDS - 1] * 5, True),
        ([IDLE_SECONDS - 1] * int(SESSION_SECONDS / IDLE_SECONDS + 1), False),
    ],
)
def test_a_session_ends_unused_and_ends_anyway(steps: list[float], is_there: bool) -> None:
    clock = SimpleNamespace(now=0.0)
    sessions = Sessions(lambda: clock.now)
    cookie, found = begun(sessions), ""
    for each in steps:
        clock.now += each
        found = sessions.credential(request(cookie))

    assert is_there is bool(found)


def test_there_is_a_bounded_number_of_sessions() -> None:
    """The one that was used least recently ends first."""
    sessions = Sessions()
    first, second = begun(sessions), begun(sessions)
    sessions.credential(request(first))
    for number in range(SESSIONS - 1):
        begun(sessions, f"zeh_{number}")

    assert ("Bearer zeh_token", "") == (
        sessions.credential(request(first)), sessions.credential(request(second))
    )  # fmt: skip


def test_a_subject_ends_its_own_sessions_alone() -> None:
    """Who signs in again and again ends his own oldest ones, also if each JWT is another text."""
    sessions = Sessions()
    admin = begun(sessions, "admin", "token 1")
    mine = [begun(sessions, f"jwt {each}", "token of jwt:bot") for each in range(SESSIONS + 10)]

    assert "Bearer admin" == sessions.credential(request(admin))
    left = [bool(sessions.credential(request(each))) for each in mine]
    assert left == [False] * (len(mine) - SESSIONS_OF_ONE) + [True] * SESSIONS_OF_ONE


def test_signing_in_again_ends_the_session_before() -> None:
    sessions = Sessions()
    old = begun(sessions)
    new = begun(sessions, cookie=old)

    assert old != new
    assert "" == sessions.credential(request(old))


def test_a_form_belongs_to_its_session() -> None:
    """A page that another visitor was given cannot act for me."""
    sessions = Sessions()
    mine, other = request(begun(sessions)), request(begun(sessions))
    key = sessions.form_key(mine)

    assert sessions.is_own_form(mine, key)
    assert not sessions.is_own_form(other, key)
    assert not sessions.is_own_form(request(), key)
    assert not sessions.is_own_form(mine, "")
    assert not Sessions().is_own_form(request(), sessions.form_key(request()))
    # one with a token of its own comes from no page; but a browser that once was asked for a
    # password sends that by itself with each form
    assert sessions.is_own_form(request(authorization="Bearer zeh_token"), "")
    assert not sessions.is_own_form(request(authorization="Basic YWRhOng="), "")


def test_the_cookie_is_kept_from_scripts_other_sites_and_plain_http() -> None:
    answer = Response()
    Sessions().begin(request(scheme="https"), answer, "zeh_token", "zeh_token")
    name, *flags = (each.strip() for each in answer.headers["set-cookie"].split(";"))

    assert "zeh_token" not in answer.headers["set-cookie"]
    assert name.startswith("zeh_console_8080=")
    assert {"HttpOnly", "SameSite=strict", "Secure", "Path=/console"} == set(flags)
