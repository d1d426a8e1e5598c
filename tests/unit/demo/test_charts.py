"""The look of the notebooks' charts."""

from __future__ import annotations

import pytest

from notebooks.kit import charts


@pytest.fixture
def axes():
    import matplotlib as mpl  # slow to import
    from matplotlib.figure import Figure

    with mpl.rc_context():
        charts.use_style()
        yield Figure().subplots()


def test_all_charts_have_one_style(axes):
    """Lines have the colors of the pictures in the docs, and nothing that is only decoration."""
    (first,) = axes.plot([1, 2])

    assert first.get_color() == charts.PUBLISHER
    assert not axes.spines["top"].get_visible()


def test_a_crash_is_marked_where_it_happened(axes):
    """I see when the driver was killed, and I can read it, too."""
    charts.mark(axes, 3, "driver killed")

    (line,), (text,) = axes.get_lines(), axes.texts
    assert list(line.get_xdata()) == [3, 3]
    assert (text.get_text(), text.xy[0]) == ("driver killed", 3)
    assert text.get_color() == line.get_color() == charts.BAD


def test_a_text_stays_within_the_chart(axes):
    """Also the one of a crash at the end."""
    axes.plot([0, 10], [0, 1])
    charts.mark(axes, 0.1, "service and publisher killed")
    charts.mark(axes, 9.9, "service and publisher killed")
    axes.figure.draw_without_rendering()

    inside = axes.get_window_extent()
    for text in axes.texts:
        extent = text.get_window_extent()
        assert inside.x0 <= extent.x0 < extent.x1 <= inside.x1


def test_texts_of_near_marks_do_not_overlap(axes):
    """Each stands on a row of its own."""
    charts.mark(axes, 3, "median", row=0)
    charts.mark(axes, 3.1, "95 %", row=1)
    axes.figure.draw_without_rendering()

    above, below = (text.get_window_extent() for text in axes.texts)
    assert below.y1 <= above.y0 + 1


def test_a_line_has_its_name_at_its_end(axes):
    """I need not look for it in a legend. The end is the last point that is there; lines without a
    name are passed over.
    """
    axes.plot([1, 2, 3], [10, 20, float("nan")], label="EWR")
    charts.mark(axes, 1, "")

    charts.name_lines(axes)

    (*_, name) = axes.texts
    assert (name.get_text(), tuple(name.xy)) == ("EWR", (2, 20))
    assert len(axes.texts) == 2
