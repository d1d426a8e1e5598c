"""Reading a publisher's metrics as Prometheus does."""

from __future__ import annotations

import requests
from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """What a publisher exports at one moment."""

    def __init__(self, base: str, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        response = requests.get(f"{base}/metrics", headers=headers, timeout=30)
        assert response.status_code == 200, response.text
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(response.text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the samples of a name that have these labels."""
        return sum(
            value
            for (found, own), value in self.samples.items()
            if found == name and labels.items() <= dict(own).items()
        )

    def labels(self, name: str) -> set[str]:
        """All values of labels of this name."""
        return {value for _, own in self.samples for label, value in own if label == name}

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.samples}
