"""The look of the notebooks' charts."""

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


def test_texts_stay_within_the_chart_and_apart(axes):
    """Also the one of a crash at the end; near ones stand on rows of their own."""
    axes.plot([0, 10], [0, 1])
    for at, row in ((0.1, 0), (0.2, 1), (9.9, 0)):
        charts.mark(axes, at, "service and publisher killed", row=row)
    axes.figure.draw_without_rendering()

    inside, extents = axes.get_window_extent(), [each.get_window_extent() for each in axes.texts]
    assert all(inside.x0 <= each.x0 < each.x1 <= inside.x1 for each in extents)
    assert extents[1].y1 <= extents[0].y0 + 1


def test_a_line_has_its_name_at_its_end(axes):
    """I need no legend. A line's end is its last point; one without a name is passed over."""
    axes.plot([1, 2, 3], [10, 20, float("nan")], label="EWR")
    charts.mark(axes, 1, "")

    charts.name_lines(axes)

    (*_, name) = axes.texts
    assert (name.get_text(), tuple(name.xy)) == ("EWR", (2, 20))
    assert len(axes.texts) == 2
