"""What every store has to keep, held against ours."""

from tests.contract import conftest
from zeh_spark.store_contract import *  # noqa: F403

shared_site = conftest.shared_site
