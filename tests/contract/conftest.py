"""Every test of this folder that wants a store runs against each."""

from __future__ import annotations

import pytest

from tests.contract.sites import SITES
from tests.store_contract.fixtures import clock, opened, receipts, site, store, world
from tests.store_contract.site import Site

__all__ = ["clock", "opened", "receipts", "site", "store", "world"]


@pytest.fixture(params=list(SITES))
def new_site(request: pytest.FixtureRequest) -> type[Site]:
    return SITES[request.param]
