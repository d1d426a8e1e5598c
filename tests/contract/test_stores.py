"""What every store has to keep, held against ours."""

from tests.contract import conftest
from tests.store_contract import *  # noqa: F403

shared_site = conftest.shared_site
