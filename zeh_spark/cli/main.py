"""The entry point of `zeh-spark`: load `commands`, or say what has to be installed first.

Rule for editors: nothing here may import at its top what only the extra `publisher` installs.
"""

from __future__ import annotations

import sys

_EXTRA = {
    "click", "starlette", "uvicorn", "httptools", "sqlalchemy", "anyio", "prometheus_client",
}  # fmt: skip


def main() -> None:
    """Run the command line; exit with 1 and the way to install it if the extra is missing."""
    try:
        import httptools  # noqa: F401  # without it uvicorn would run, but slowly

        from zeh_spark.cli.commands import zeh_spark
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.exit(f'zeh-spark needs {exc.name}. Install it: pip install "zeh-spark[publisher]"')
    zeh_spark()
