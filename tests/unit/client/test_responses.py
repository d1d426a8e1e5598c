"""Why a request failed, among the errors that requests wraps around it."""

from __future__ import annotations

import pytest
import requests

from tests.ports import free_port
from zeh_spark.client.responses import innermost


def test_what_was_handled_before_a_request_is_not_why_it_failed() -> None:
    """My program may repeat a request while it handles an error of its own."""
    with pytest.raises(requests.ConnectionError) as raised:
        try:
            raise KeyError("mine")
        except KeyError:
            requests.get(f"http://127.0.0.1:{free_port()}", timeout=9)

    assert isinstance(innermost(raised.value), ConnectionRefusedError)
