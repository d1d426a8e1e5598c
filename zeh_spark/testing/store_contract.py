"""The contract of every store, as tests for pytest.

To test a store for another database, write a `Site` (see `site`), which says where its data is, and
this test file:

    import pytest
    from zeh_spark.testing.store_contract import *

    @pytest.fixture
    def new_site():
        return MySite

Run the tests several times, because the histories in them are random. A store is right if all of
them pass each time. `pytest --hypothesis-profile=…` makes the histories longer. Needs pytest,
hypothesis and the extra `publisher`.
"""

from __future__ import annotations

import pytest

PARTS = (
    "batches",
    "clock",
    "cursor_sets",
    "direct_reads",
    "epochs",
    "histories",
    "incarnations",
    "reading",
    "retention",
    "retention_laws",
    "tokens",
    "uploads",
)

pytest.register_assert_rewrite(*(f"zeh_spark.testing.contract_{part}" for part in PARTS))

from zeh_spark.testing.contract_batches import *  # noqa: E402, F403
from zeh_spark.testing.contract_clock import *  # noqa: E402, F403
from zeh_spark.testing.contract_cursor_sets import *  # noqa: E402, F403
from zeh_spark.testing.contract_direct_reads import *  # noqa: E402, F403
from zeh_spark.testing.contract_epochs import *  # noqa: E402, F403
from zeh_spark.testing.contract_histories import *  # noqa: E402, F403
from zeh_spark.testing.contract_incarnations import *  # noqa: E402, F403
from zeh_spark.testing.contract_reading import *  # noqa: E402, F403
from zeh_spark.testing.contract_retention import *  # noqa: E402, F403
from zeh_spark.testing.contract_retention_laws import *  # noqa: E402, F403
from zeh_spark.testing.contract_tokens import *  # noqa: E402, F403
from zeh_spark.testing.contract_uploads import *  # noqa: E402, F403
from zeh_spark.testing.fixtures import *  # noqa: E402, F403
