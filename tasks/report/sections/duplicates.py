"""Shows near-duplicates: how many, how they were found, and pairs side by side."""

from __future__ import annotations

from functools import partial

from markupsafe import Markup

from tasks.report.charts import Chart, Mark, Series, bars, lines
from tasks.report.differences import mark_differences
from tasks.report.markup import hashed
from tasks.report.page import Section
from tasks.report.quantities import Facts, count, numbers, percent, plural, share
from tasks.report.run import Run

CURVE_POINTS = 41
FIRST_GROUPED = 6
"""Clusters of this many members or more are counted in groups."""
KINDS = {
    "EXACT_DUPLICATE": "exact",
    "NEAR_DUPLICATE": "near",
    "SAME_URL": "by URL",
    "NOTHING_LEFT": "in every paragraph",
}


def duplicates_section(run: Run) -> Section:
    dedup, counters = run.metrics("dedup"), run.counters("dedup")
    dropped = numbers(counters.group("dropped"))
    removed = sum(dropped.values())
    kinds = ", ".join(f"{count(n)} {KINDS.get(k, k)}" for k, n in sorted(dropped.items()))
    judged = run.counters("quality").number("kept")
    finding = (
        f"{plural(removed, 'document')} ({share(removed, judged)} of those that passed the quality"
        f" rules) repeat another one{f': {kinds}' if kinds else ''}."
    )
    if counters.number("kept") is None:
        finding = "How many documents repeat another one was not measured in this run."
    if cut_documents := counters.number("cut_documents"):
        finding += (
            f" {count(counters.number('cut_bytes'))} bytes that occurred before were cut out of"
            f" {plural(cut_documents, 'document')}."
        )
    clusters = sorted(dedup.rows("clusters"), key=lambda c: -(c.number("size") or 0))
    values = {
        "dedup": dedup,
        "sizes": _cluster_sizes(dedup),
        **_candidate_curve(Facts(dedup.group("lsh"))),
        "clusters": [
            (
                hashed(cluster.text("survivor_id") or "–"),
                Markup(" ").join(hashed(str(id_)) for id_ in cluster.sequence("member_ids")),
                count(cluster.number("size")),
            )
            for cluster in clusters
        ],
        "examples": [
            mark_differences(survivor, member)
            for example in run.metrics("documents").rows("duplicate_examples")
            if (survivor := example.text("survivor")) and (member := example.text("member"))
        ],
    }
    return Section("duplicates", "Duplicates", finding, values)


def _cluster_sizes(dedup: Facts) -> Chart | None:
    histogram = numbers(dedup.group("cluster_size_histogram"))
    sizes = {int(k): n for k, n in histogram.items() if k.isdigit() and int(k) > 1 and n}
    grouped: dict[tuple[int, int], float] = {}
    for members, n in sorted(sizes.items()):
        low = high = members
        # From one power of two to the next; the first group begins later, at FIRST_GROUPED.
        if members >= FIRST_GROUPED:
            power = 1 << (members.bit_length() - 1)
            low, high = max(power, FIRST_GROUPED), 2 * power - 1
        grouped[low, high] = grouped.get((low, high), 0) + n
    marks = []
    for (low, high), n in grouped.items():
        name = f"{low} documents" if low == high else f"{low} to {high} documents"
        marks.append(Mark(name, n, plural(n, "cluster"), f"{plural(n, 'cluster')} of {name}"))
    return partial(bars, marks) if marks else None


def _candidate_curve(lsh: Facts) -> dict[str, object]:
    """How likely banding finds a pair: a property of the settings, 1 − (1 − sʳ)ᵇ (MMDS ch. 3)."""
    num_bands, num_rows, threshold = lsh.each("num_bands", "rows_per_band", "threshold")
    if num_bands is None or num_rows is None or num_bands < 1 or num_rows < 1:
        return {"banding_curve": None}
    similarities = [i / (CURVE_POINTS - 1) for i in range(CURVE_POINTS)]
    curve = Series("probability", [(s, 1 - (1 - s**num_rows) ** num_bands) for s in similarities])
    at = ""
    if threshold is not None and 0 <= threshold <= 1:
        found = percent(1 - (1 - threshold**num_rows) ** num_bands)
        at = f" At the threshold of {threshold:g} it is {found}."
    return {
        "banding_curve": partial(
            lines, [curve], x_label="Jaccard similarity", y_label="probability", from_zero=True
        ),
        "at_threshold": at,
    }
