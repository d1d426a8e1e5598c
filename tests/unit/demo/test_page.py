from html.parser import HTMLParser

from examples.demo import page
from examples.demo.record import Batch, Record


class Parts(HTMLParser):
    """The elements of a page, by tag, with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def of(self, tag, kind=None):
        return [
            each for name, each in self.found if name == tag and kind in (None, each.get("class"))
        ]


def record():
    made = Record(clock=iter([0.0]).__next__)
    made.published += [Batch(0, 1.0, 10, {}), Batch(1, 4.0, 20, {})]
    made.read += [Batch(0, 6.0, 30, {"0": 3, "1": 2})]
    made.crashes += [2.0, 7.0]
    return made


def test_the_page_shows_batches_and_crashes():
    """I see at which batch a job was killed, and that it continued."""
    text = page.rendered(record())
    parts = Parts(text)

    assert "30 flights were published in 2 batches, and 30 were read in 1." in text
    assert len(parts.of("line", "crash")) == 2 * 2  # both crashes in both charts
    assert len(parts.of("path")) == 2 + 2  # two totals, two partitions
    assert len(parts.of("tr")) == 1 + 3
    # axes have round numbers
    assert [f">{number}</text>" in text for number in (0, 10, 20, 30, 15)] == [True] * 4 + [False]
    assert [f">{seconds} s</text>" in text for seconds in (0, 2, 4, 6, 7)] == [True] * 4 + [False]


def test_the_page_needs_nothing_from_elsewhere():
    parts = Parts(page.rendered(record()))

    assert {"script", "link", "img", "iframe"}.isdisjoint(tag for tag, _ in parts.found)
    assert [each for _, each in parts.found if {"src", "href"} & each.keys()] == []
