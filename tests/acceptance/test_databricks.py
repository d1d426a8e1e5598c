"""The notebooks as they run on Databricks, in an emulation of what they use of it, and the bundle.

The emulation has Databricks' environment variables, its `dbutils`, and a session that is there
before the notebook. `docs/operate/databricks.md` says what this proves and what it does not.
"""

from __future__ import annotations

import pytest

from notebooks import run as notebooks
from tests.fix_lake import why_absent
from tests.unit.test_notebooks import code, kept, proof, texts

LAPTOP_ONLY = "laptop_because="
"""The argument by which a notebook says why it does not run there. It fails in its first cell: see
`tests/integration/test_notebook_publisher.py`.
"""
NAMES = [
    path.stem for path in notebooks.NOTEBOOKS if LAPTOP_ONLY not in code(kept(path.stem))[0].source
]
OF_THE_JOB = "03_feed_to_lakehouse"
"""The notebook that the bundle's job runs. The others are run as they are by `test_notebooks`."""

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.mark.parametrize(
    "name",
    [
        name if name == OF_THE_JOB else pytest.param(name, marks=pytest.mark.campaign)
        for name in NAMES
    ],
)
def test_a_notebook_runs_as_on_databricks_and_shows_no_secret(name, databricks):
    """I fill in the widgets, and it runs to its end: the feed's address, a schema with its catalog,
    a volume and a secret scope are all that it needs. The token is nowhere to be seen.
    """
    if absent := why_absent():
        pytest.skip(absent)

    done = databricks.notebook(name)

    assert proof(done)
    assert [cell.id for cell in code(done) if databricks.token in texts(cell)] == []
    assert databricks.files_with_the_token() == []
    assert list(databricks.volume.iterdir())
