"""What every store has to keep, held against ours, also while its chunks are packed."""

from __future__ import annotations

import pytest

from tests.contract.sites import SEALING, SITES
from tests.store_contract import *  # noqa: F403
from tests.store_contract.site import Site


@pytest.fixture(params=[*SITES, *SEALING])
def new_site(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Site]:
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 3)
    return {**SITES, **SEALING}[request.param]
