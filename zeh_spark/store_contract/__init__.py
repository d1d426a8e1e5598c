"""The contract of every store, as tests for pytest.

To test a store for another database, write a `Site` (see `site`), which says where its data is, and
this test file:

    import pytest
    from zeh_spark.store_contract import *

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
    "acts",
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
    "retention_readers",
    "tokens",
    "uploads",
)

pytest.register_assert_rewrite(*(f"zeh_spark.store_contract.{part}" for part in PARTS))

from zeh_spark.store_contract.acts import *  # noqa: E402, F403
from zeh_spark.store_contract.batches import *  # noqa: E402, F403
from zeh_spark.store_contract.clock import *  # noqa: E402, F403
from zeh_spark.store_contract.cursor_sets import *  # noqa: E402, F403
from zeh_spark.store_contract.direct_reads import *  # noqa: E402, F403
from zeh_spark.store_contract.epochs import *  # noqa: E402, F403
from zeh_spark.store_contract.fixtures import *  # noqa: E402, F403
from zeh_spark.store_contract.histories import *  # noqa: E402, F403
from zeh_spark.store_contract.incarnations import *  # noqa: E402, F403
from zeh_spark.store_contract.reading import *  # noqa: E402, F403
from zeh_spark.store_contract.retention import *  # noqa: E402, F403
from zeh_spark.store_contract.retention_laws import *  # noqa: E402, F403
from zeh_spark.store_contract.retention_readers import *  # noqa: E402, F403
from zeh_spark.store_contract.tokens import *  # noqa: E402, F403
from zeh_spark.store_contract.uploads import *  # noqa: E402, F403
