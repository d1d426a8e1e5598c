"""What every store has to keep, held against ours."""

from tests.store_contract import *  # noqa: F403
