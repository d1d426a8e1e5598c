"""Files of any kind, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.unit.loading.loads import Files


@pytest.fixture
def file(tmp_path: Path) -> Files:
    def write(name: str, content: bytes | pa.Table) -> str:
        path = tmp_path / name
        if isinstance(content, pa.Table):
            parquet.write_table(content, path)
        else:
            path.write_bytes(content)
        return str(path)

    return write
