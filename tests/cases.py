"""A table of cases as one test: for pure functions, where a test for each costs too much."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def each_case(names: str | Sequence[str], given: Iterable[Any]) -> Callable[..., Any]:
    """Run a test with each case, as `pytest.mark.parametrize` does, but as a single test.

    A test that fails names its case; those after it are not tried.
    """
    wanted = [each.strip() for each in names.split(",")] if isinstance(names, str) else [*names]
    alone = isinstance(names, str) and len(wanted) == 1
    table = [dict(zip(wanted, [each] if alone else each, strict=True)) for each in given]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**others: Any) -> None:
            for case in table:
                try:
                    test(**others, **case)
                except Exception as exc:
                    raise AssertionError(f"in the case {case}") from exc

        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in wanted]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
