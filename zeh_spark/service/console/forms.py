"""What pages send: the fields of forms, and the check that a form comes from a page of ours.

Runs in the publisher's event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl

from starlette.requests import Request

from zeh_spark.service.console.sessions import Sessions
from zeh_spark.service.network.bodies import check_length, received
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import problems

FORM_BYTES = 16 << 10
"""Bytes of a form. A JWT has a few thousand."""

FORM_KEY = "form_key"
"""The field that a page of ours puts into each form."""

_FORM = "application/x-www-form-urlencoded"


async def form_of(request: Request, sessions: Sessions) -> Mapping[str, str]:
    """Return the fields of a form.

    Raises Problem if it is no form, or not one of this session.
    """
    length = check_length(request.headers.get("content-length"), FORM_BYTES)
    if length and request.headers.get("content-type", "").partition(";")[0].strip() != _FORM:
        raise Problem(problems.UNSUPPORTED_MEDIA_TYPE, f"the body has to be of the type {_FORM}")
    async with received(request, length) as body:
        text = body.read().decode("utf-8", "replace")
    try:
        fields = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=50))
    except ValueError:
        raise Problem(
            problems.BODY_TOO_LARGE, "the form has more than 50 fields", maximum=50
        ) from None
    check_texts(fields.items())
    if not sessions.is_own_form(request, fields.get(FORM_KEY, "")):
        raise Problem(
            problems.FOREIGN_ORIGIN,
            "the form is not one of this session: you signed out meanwhile, or the publisher was "
            "started again. Open the page again and repeat what you did",
        )
    return fields


def check_texts(given: Iterable[tuple[str, str]]) -> None:
    """Raise Problem for a text that no name has, and that PostgreSQL takes for an error of ours."""
    for name, text in given:
        if "\0" in text:
            raise Problem(
                problems.BAD_PARAMETER,
                f"{name} is {text!r}; a NUL character is not allowed",
                parameter=name,
            )


def field_of(fields: Mapping[str, str], name: str) -> str:
    """Return a field of a form, without spaces around it. Raises Problem if it is missing."""
    if name not in fields:
        raise Problem(problems.PARAMETER_MISSING, f"the form has no field {name!r}", parameter=name)
    return fields[name].strip()
