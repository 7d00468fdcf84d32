"""Charts of the report: ticks that can be read, marks inside their frame, labels that do not
overlap."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup, escape

from tasks.documents import duplicate_examples
from tasks.report import differences
from tasks.report.charts import (
    NARROW_WIDTH,
    WIDE,
    Mark,
    Reference,
    Series,
    bars,
    forest,
    heat,
    histogram,
    lines,
)
from tasks.report.differences import mark_differences
from tasks.report.quantities import compact, duration, percent, significant, size
from tasks.report.scales import linear_axis, log_axis, shorten, text_width, tick_text
from tasks.report.svg import tag

values = st.floats(-1e9, 1e9).filter(lambda x: x == 0 or abs(x) > 1e-9)
amounts = st.floats(0, 1e9)
names = st.text(max_size=40)
widths = st.sampled_from([WIDE, NARROW_WIDTH])


def coordinates(svg: str, names: str) -> list[float]:
    return [float(x) for x in re.findall(rf' (?:{names})="(-?[\d.e+]+)"', svg)]


@settings(max_examples=40, deadline=None)
@given(values, values, st.booleans())
def test_linear_ticks_are_few_and_inside(a: float, b: float, snap: bool) -> None:
    axis = linear_axis(min(a, b), max(a, b), 0, 100, snap=snap)
    assert 1 <= len(axis.ticks) <= 12
    near = 1e-6 * (axis.high - axis.low)
    assert all(axis.low - near <= t <= axis.high + near for t in axis.ticks)
    assert list(axis.ticks) == sorted(set(axis.ticks))


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-9, 1e12), st.floats(1e-9, 1e12))
def test_log_ticks_are_few_and_inside(a: float, b: float) -> None:
    axis = log_axis(min(a, b), max(a, b), 0, 100)
    assert len(axis.ticks) <= 8 and all(axis.low <= t <= axis.high for t in axis.ticks)
    assert 0 <= axis.at(a) <= 100


@settings(max_examples=40, deadline=None)
@given(names, st.floats(20, 300))
def test_shortened_text_fits(text: str, room: float) -> None:
    short = shorten(text, room)
    assert text_width(short) <= room or short == "…"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(names, amounts, amounts), max_size=12), widths)
def test_bars_stay_in_their_frame(rows: list[tuple[str, float, float]], width: int) -> None:
    svg = bars([Mark(n, min(v, w), compact(v), n, whole=max(v, w)) for n, v, w in rows], width)
    assert all(-0.1 <= x <= width + 0.1 for x in coordinates(svg, "x"))
    assert svg.count("<title>") == len(rows)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(names, values, amounts), min_size=1, max_size=12),
    st.lists(values, max_size=2),
    widths,
)
def test_forest_marks_stay_in_their_frame(
    rows: list[tuple[str, float, float]], references: list[float], width: int
) -> None:
    estimates = [Mark(n, v, "1.000", n, low=v - w, high=v + w) for n, v, w in rows]
    svg = forest(estimates, [Reference("r", r) for r in references], "unit", width)
    assert all(-0.1 <= x <= width + 0.1 for x in coordinates(svg, "x|x1|x2|cx"))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30), st.booleans(), widths)
def test_histogram_draws_every_bin_between_the_first_and_last_used(
    counts: list[int], log: bool, width: int
) -> None:
    edges = [float(2**i) for i in range(len(counts) + 1)]
    svg = histogram(edges, counts, width, x_label="x", noun="things", log=log)
    used = [i for i, n in enumerate(counts) if n] or [0]
    assert svg.count("<title>") == used[-1] - used[0] + 1
    assert all(-0.1 <= x <= width + 0.1 for x in coordinates(svg, "x|x1|x2"))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(values, values), min_size=1, max_size=30), widths)
def test_lines_stay_in_their_frame(points: list[tuple[float, float]], width: int) -> None:
    svg = lines([Series("s", sorted(points))], width, x_label="x", y_label="y")
    assert all(-0.1 <= x <= width + 0.1 for x in coordinates(svg, "cx|x1|x2"))
    assert svg.count("<title>") == len(points)


def test_tick_labels_do_not_overlap() -> None:
    edges = [2.0**i for i in range(25)]
    for width in (WIDE, NARROW_WIDTH):
        svg = histogram(
            edges,
            [1] * 24,
            width,
            x_label="x",
            noun="n",
            log=True,
            tick=lambda v: f"{v:,.0f} bytes of text",
        )
        labels = re.findall(r'<text x="([\d.]+)"[^>]*>([\d,]+ bytes of text)<', svg)
        assert len(labels) >= 2
        for (x0, left), (x1, right) in pairwise(labels):
            assert float(x0) + text_width(left, 11) / 2 <= float(x1) - text_width(right, 11) / 2


def test_heat_shades_by_share_of_the_row() -> None:
    svg = heat(["A", "B"], [1, 2], [[10, 5], [5, 5]], WIDE, noun="documents")
    assert "A and B: 5 documents, 50 % of A" in svg and "B and A: 5 documents, 100 % of B" in svg


def test_column_numbers_of_a_narrow_heat_map_do_not_overlap() -> None:
    numbered = list(range(1, 25))
    matrix = [[1] * 24] * 24
    svg = heat([f"RULE_{n}" for n in numbered], numbered, matrix, NARROW_WIDTH, noun="documents")
    columns = re.findall(r'<text x="([\d.]+)"[^>]*class="muted"[^>]*>(\d+)<', svg)
    assert len(columns) > 8
    for (x0, left), (x1, right) in pairwise(columns):
        assert float(x1) - float(x0) >= (text_width(left) + text_width(right)) / 2 - 0.2


@settings(max_examples=40, deadline=None)
@given(st.text())
def test_escaped_text_has_no_markup(text: str) -> None:
    assert not set(escape(text)) & set("<>\"'")


def test_markup_is_not_escaped_twice_and_attributes_cannot_be_left() -> None:
    inner = tag("b", "a & b")
    assert tag("p", inner) == "<p><b>a &amp; b</b></p>"
    assert tag("p", title='"><script>') == '<p title="&#34;&gt;&lt;script&gt;"></p>'
    assert isinstance(inner, Markup)


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_marked_texts_keep_all_their_characters(first: str, second: str) -> None:
    for text, marked in zip((first, second), mark_differences(first, second), strict=True):
        assert re.sub("</?mark>", "", marked) == escape(text) or "⟨" in marked or "\r" in text


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="abc 漢字.", max_size=40))
def test_equal_texts_have_no_marks(text: str) -> None:
    assert "<mark>" not in "".join(mark_differences(text, text))


def test_where_an_excerpt_breaks_off_is_no_difference() -> None:
    assert differences.EXCERPT_CHARS == duplicate_examples.EXCERPT_CHARS
    text = " ".join(f"word{i}" for i in range(100))
    for first, second in ((text[:300], f"New. {text}"[:300]), (f"New. {text}"[:300], text[:300])):
        marked = "".join(mark_differences(first, second))
        assert re.findall("<mark>(.*?)</mark>", marked) == ["New."]
    assert "<mark>" in mark_differences(text[:300], text[:90])[0], "a whole text ends where it ends"
    assert "<mark>end</mark>" in mark_differences("the end", "the last")[0], (
        "whole texts differ to their ends"
    )


def test_quantities_read_as_people_write_them() -> None:
    def read(*texts: str) -> list[str]:
        return [text.replace("\u202f", " ") for text in texts]

    assert read(*map(compact, (967, 9_999, 12_345, 945_812, 6_291_456))) == [
        "967",
        "9,999",
        "12.3 k",
        "946 k",
        "6.29 M",
    ]
    assert read(*map(significant, (0, 0.1234, 12.345, 1234.5, 123456.0))) == [
        "0",
        "0.123",
        "12.3",
        "1,230",
        "123,000",
    ]
    assert read(significant(3.1e-13), significant(-0.5)) == ["3.10e−13", "−0.500"]
    assert read(*map(size, (0, 999, 1500, 6_412_345))) == ["0 B", "999 B", "1.50 kB", "6.41 MB"]
    assert read(*map(percent, (0, 1, 0.99999, 0.00001, 0.694))) == [
        "0 %",
        "100 %",
        "99.9 %",
        "< 0.1 %",
        "69.4 %",
    ]
    assert read(*map(duration, (0.5, 59.9, 61, 3600))) == [
        "0.500 s",
        "59.9 s",
        "1 min 01 s",
        "1 h 00 min",
    ]
    assert read(*map(tick_text, (0, 0.3, 2000, 1_500_000))) == ["0", "0.3", "2 k", "1.5 M"]
