"""The contract of every store, as tests that `tests.contract` runs against each of ours.

`site` says where a store's data is, `world` surrounds a store with drivers and faults, and
`anomalies` says what they find. The histories in the tests are random;
`HYPOTHESIS_PROFILE=campaign` runs more of them.
"""

import pytest

PARTS = (
    "acts",
    "batches",
    "clock",
    "contracts",
    "cursor_sets",
    "direct_reads",
    "epochs",
    "histories",
    "incarnations",
    "packs",
    "reading",
    "retention",
    "retention_laws",
    "retention_readers",
    "tokens",
    "uploads",
)

pytest.register_assert_rewrite(*(f"tests.store_contract.{part}" for part in PARTS))

from tests.store_contract.acts import *  # noqa: E402, F403
from tests.store_contract.batches import *  # noqa: E402, F403
from tests.store_contract.clock import *  # noqa: E402, F403
from tests.store_contract.contracts import *  # noqa: E402, F403
from tests.store_contract.cursor_sets import *  # noqa: E402, F403
from tests.store_contract.direct_reads import *  # noqa: E402, F403
from tests.store_contract.epochs import *  # noqa: E402, F403
from tests.store_contract.fixtures import *  # noqa: E402, F403
from tests.store_contract.histories import *  # noqa: E402, F403
from tests.store_contract.incarnations import *  # noqa: E402, F403
from tests.store_contract.packs import *  # noqa: E402, F403
from tests.store_contract.reading import *  # noqa: E402, F403
from tests.store_contract.retention import *  # noqa: E402, F403
from tests.store_contract.retention_laws import *  # noqa: E402, F403
from tests.store_contract.retention_readers import *  # noqa: E402, F403
from tests.store_contract.tokens import *  # noqa: E402, F403
from tests.store_contract.uploads import *  # noqa: E402, F403
