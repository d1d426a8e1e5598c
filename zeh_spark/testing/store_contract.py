"""What every store has to keep, as tests for pytest. Who writes a store for another database writes
a `Site` (see `site`), which tells where its data is, and a test file:

    from zeh_spark.testing.store_contract import *

    @pytest.fixture
    def new_site():
        return MySite

A store for which they all pass, again and again, is right: histories are random. `pytest
--hypothesis-profile=…` makes them longer. Needs pytest, hypothesis and the extra `publisher`.
"""

from __future__ import annotations

import pytest

PARTS = (
    "batches",
    "epochs",
    "histories",
    "incarnations",
    "reading",
    "retention",
    "retention_laws",
    "uploads",
)

pytest.register_assert_rewrite(*(f"zeh_spark.testing.contract_{part}" for part in PARTS))

from zeh_spark.testing.contract_batches import *  # noqa: E402, F403
from zeh_spark.testing.contract_epochs import *  # noqa: E402, F403
from zeh_spark.testing.contract_histories import *  # noqa: E402, F403
from zeh_spark.testing.contract_incarnations import *  # noqa: E402, F403
from zeh_spark.testing.contract_reading import *  # noqa: E402, F403
from zeh_spark.testing.contract_retention import *  # noqa: E402, F403
from zeh_spark.testing.contract_retention_laws import *  # noqa: E402, F403
from zeh_spark.testing.contract_uploads import *  # noqa: E402, F403
from zeh_spark.testing.fixtures import *  # noqa: E402, F403
