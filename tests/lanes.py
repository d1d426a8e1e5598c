"""Which process of xdist runs which tests: so that all end together, and few start a JVM.

Tests of the shared Spark session go module by module to the first processes, which have a JVM each,
before anything else. The tests of a module that share a fixture stay together. All others go one
by one to whoever is free.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

JVMS = 2
"""So many processes have a Spark session."""
SPARK = ("delta ", "spark ")
"""How groups with Spark begin. Each JVM begins with one of them, whose code it then has loaded."""


def group_of(item: pytest.Item) -> str | None:
    """Name what has to stay together; nothing for a test that runs anywhere."""
    used = set(getattr(item, "fixturenames", ()))
    module = item.nodeid.partition("::")[0]
    if "connect_server" in used:
        return "connect"
    if "cluster" in used:
        return "spark cluster"
    if "spark" in used:
        return f"{'delta' if 'delta' in item.path.name else 'spark'} {module}"
    for started_once in ("browser", "object_store"):
        if started_once in used:
            return started_once
    fixtures = item._fixtureinfo.name2fixturedefs.values() if hasattr(item, "_fixtureinfo") else ()
    shares = any(each.scope == "module" for definitions in fixtures for each in definitions)
    return module if shares else None


class Lanes(LoadGroupScheduling):
    """Gives each process the largest group that it may run."""

    def _unit_for(self, node: WorkerController) -> str | None:
        place = [each for each in self.nodes if not each.shutting_down].index(node)
        if place >= JVMS:
            return next((each for each in self.workqueue if not each.startswith(SPARK)), None)
        with_spark = [each for each in self.workqueue if each.startswith(SPARK)]
        with_spark.sort(key=lambda each: not each.startswith(SPARK[place]))
        return next(iter([*with_spark, *self.workqueue]), None)

    def _assign_work_unit(self, node: WorkerController) -> None:
        unit = self._unit_for(node)
        if unit is None:
            node.shutdown()
        else:
            self.workqueue.move_to_end(unit, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if not node.shutting_down and self._pending_of(self.assigned_work[node]) <= 2:
            self._assign_work_unit(node)
