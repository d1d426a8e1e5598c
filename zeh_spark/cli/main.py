"""The command `zeh-spark`: loads `commands`, or says what has to be installed first."""

from __future__ import annotations

import sys

_EXTRA = {"click", "starlette", "uvicorn", "httptools", "sqlalchemy", "anyio"}


def main() -> None:
    try:
        import httptools  # noqa: F401  # uvicorn would go on slowly without it

        from zeh_spark.cli.commands import zeh_spark
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.exit(f'zeh-spark needs {exc.name}: pip install "zeh-spark[publisher]"')
    zeh_spark()
