"""The report of a run: a sound page for any artifacts, that shows what was measured and nothing
else."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from tasks.report.config import ReportConfig
from tasks.report.quantities import (
    NOT_MEASURED,
    compact,
    count,
    fixed,
    percent,
    significant,
    size,
)
from tasks.report.stage import REPORT_FILE, write_report
from tasks.runtime.artifact import Artifact
from tests.support.data import report_artifacts
from tests.support.report_page import Page, render

KINDS = [
    report_artifacts.realistic,
    report_artifacts.bare,
    report_artifacts.single,
    report_artifacts.hostile,
]
Make = Callable[[Path], list[Artifact]]


@pytest.mark.parametrize("make", KINDS)
def test_page_is_well_formed(make: Make, tmp_path: Path) -> None:
    page = Page(render(make(tmp_path), tmp_path))
    assert page.faults == [] and page.open == []
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("make", KINDS)
def test_links_lead_to_places_on_the_page(make: Make, tmp_path: Path) -> None:
    page = Page(render(make(tmp_path), tmp_path))
    ids = {value for _, name, value in page.attributes if name == "id"}
    targets = [
        value
        for _, name, value in page.attributes
        if name in ("href", "src", "xlink:href", "data", "poster", "srcset")
    ]
    assert targets and all(target.startswith("#") and target[1:] in ids for target in targets)


@pytest.mark.parametrize("make", KINDS)
def test_page_loads_nothing_and_runs_nothing(make: Make, tmp_path: Path) -> None:
    html = render(make(tmp_path), tmp_path, title=report_artifacts.HOSTILE)
    page = Page(html)
    assert not {
        "script",
        "img",
        "iframe",
        "link",
        "object",
        "embed",
        "image",
        "use",
        "foreignobject",
        "base",
    } & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style and "@import" not in style
    assert "default-src 'none'" in next(
        v for t, n, v in page.attributes if t == "meta" and v.startswith("default-src")
    )


def test_hostile_text_is_shown_as_text(tmp_path: Path) -> None:
    html = render(report_artifacts.hostile(tmp_path), tmp_path)
    assert "<script" not in html and "<img" not in html
    assert report_artifacts.HOSTILE in Page(html).text


def test_invisible_and_reordering_characters_are_made_visible(tmp_path: Path) -> None:
    html = render(report_artifacts.hostile(tmp_path), tmp_path)
    assert not set(html) & set("\x00\u202e\ud800")
    assert "⟨U+202E⟩" in html and "⟨U+D800⟩" in html and "⟨U+0000⟩" in html


def test_long_names_are_shortened_in_charts_and_whole_in_titles(tmp_path: Path) -> None:
    html = render(report_artifacts.hostile(tmp_path), tmp_path)
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", html)
    assert max(map(len, labels)) < 100
    assert any(
        report_artifacts.LONG_NAME in title for title in re.findall(r"<title>([^<]*)</title>", html)
    )


def test_equal_artifacts_give_equal_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = render(report_artifacts.realistic(tmp_path / "a"), tmp_path / "a")
    assert first == render(report_artifacts.realistic(tmp_path / "b"), tmp_path / "b")
    assert str(tmp_path) not in first


def test_page_does_not_depend_on_the_order_of_json_keys(tmp_path: Path) -> None:
    """An artifact that was read back from disk has its keys sorted; a fresh one has them as the
    stage wrote them."""

    def reread(value: Any) -> Any:
        return json.loads(json.dumps(value, sort_keys=True))

    artifacts = report_artifacts.realistic(tmp_path)
    read_back = [
        Artifact(a.path, a.stage, *map(reread, (a.counters, a.metrics, a.record)))
        for a in artifacts
    ]
    assert render(read_back, tmp_path) == render(artifacts, tmp_path)


def test_every_headline_metric_is_shown(tmp_path: Path) -> None:
    artifacts = report_artifacts.realistic(tmp_path)
    text = Page(render(artifacts, tmp_path)).text
    metrics = {a.stage: a.metrics for a in artifacts}
    ingest, train, evaluate, bench = (metrics[s] for s in ("ingest", "train", "evaluate", "bench"))
    tokenizer, dedup = metrics["tokenizer"], metrics["dedup"]
    shown = [
        *(count(v["documents"]) for v in ingest["by_source"].values()),
        *(size(v["bytes"]) for v in ingest["by_source"].values()),
        *(count(n) for n in ingest["licenses"].values()),
        *ingest["licenses"],
        *(x["error"] for x in ingest["quarantine_examples"]),
        *(count(v["documents"]) for v in metrics["language"]["languages"].values()),
        *(
            count(row[key])
            for row in metrics["quality"]["funnel"]
            for key in ("dropped", "dropped_first")
        ),
        *(rule["feature"].replace("_", "_ ") for rule in metrics["quality"]["rules"]),
        *(count(n) for n in metrics["quality"]["dropped_by_language"].values()),
        *(count(dedup[key]) for key in ("candidate_pairs", "verified_pairs", "families")),
        *(c["survivor_id"] for c in dedup["clusters"]),
        *(
            count(t[key])
            for t in metrics["pii"]["types"].values()
            for key in ("spans", "documents")
        ),
        *(count(row["documents"]) for row in metrics["documents"]["funnel"]),
        *(count(n) for group in metrics["documents"]["dropped"].values() for n in group.values()),
        count(tokenizer["vocab_size"]),
        significant(tokenizer["fertility"]),
        percent(tokenizer["unknown_frac"]),
        percent(tokenizer["round_trip_frac"]),
        *(significant(v) for v in tokenizer["bytes_per_token"].values()),
        *(significant(v["bytes_per_token"]) for v in tokenizer["by_language"].values()),
        *tokenizer["sample_tokens"],
        *(count(split["tokens"]) for split in metrics["shards"]["splits"].values()),
        metrics["shards"]["dtype"],
        count(train["num_parameters"]),
        fixed(train["final_val_loss"]),
        fixed(train["final_train_loss"]),
        compact(train["tokens_per_s"]),
        train["device"],
        train["dtype"],
        train["layout"]["kind"],
        *(fixed(evaluate["val_bpb"][key]) for key in ("value", "low", "high")),
        fixed(evaluate["unigram_bpb"]),
        fixed(evaluate["bigram_bpb"]),
        *(
            fixed(v["value"])
            for group in ("by_source", "by_language")
            for v in evaluate[group].values()
        ),
        *(re.sub(r"\s+", " ", sample["text"]) for sample in evaluate["samples"][2:]),
        significant(bench["correctness"]["fp64_max_abs_diff"]),
        compact(bench["decode_tok_s"]),
        compact(bench["prefill_tok_s"]),
        *(significant(cell["decode_tok_s"]["median"]) for cell in bench["cells"]),
        *bench["definitions"].values(),
        *(a.key for a in artifacts),
        *(a.record["identity"]["code"] for a in artifacts),
        *(f["digest"] for a in artifacts for f in a.record["files"]),
        "mill-01",
    ]
    assert [value for value in shown if re.sub(r"\s+", " ", value) not in text] == []


def test_tokens_seen_and_tokens_in_shards_are_told_apart(tmp_path: Path) -> None:
    artifacts = report_artifacts.realistic(tmp_path)
    made = write_report(*artifacts, tmp_path, ReportConfig("A run"))  # type: ignore[arg-type]
    text = Page((tmp_path / REPORT_FILE).read_text("utf-8")).text
    train = next(a for a in artifacts if a.stage == "train")
    held = next(a for a in artifacts if a.stage == "shards").metrics["splits"]["train"]["tokens"]
    seen = train.counters["tokens"] * (1 - train.metrics["packing"]["padding_frac"])
    assert (
        made.metrics["headline"]["train_shard_tokens"] == held
        and made.metrics["headline"]["train_seen_tokens"] == seen
    )
    assert len({compact(held), compact(seen), compact(train.counters["tokens"])}) == 3, (
        "none can be taken for another"
    )
    said = (
        f"Tokens seen {compact(seen)} {compact(held)} in training shards",
        f"as many as {significant(seen / held, 2)} passes over them",
        f"Training saw {compact(seen)} tokens of a text of {compact(held)}",
    )
    assert [one for one in said if re.sub(r"\s+", " ", one) not in text] == []


def test_curve_points_carry_their_values(tmp_path: Path) -> None:
    artifacts = report_artifacts.realistic(tmp_path)
    titles = re.findall(r"<title>([^<]*)</title>", render(artifacts, tmp_path))
    for point in next(a for a in artifacts if a.stage == "train").metrics["val_curve"]:
        assert any(
            t.startswith("validation loss")
            and f"step {point['step']}: {point['val_loss']:.4g}" in t
            for t in titles
        )


@pytest.mark.parametrize(
    "i", range(max(len(a.metrics) for a in report_artifacts.realistic(Path("unused"))))
)
def test_missing_metrics_are_tolerated(i: int, tmp_path: Path) -> None:
    """The i-th metric of every stage is left out."""
    artifacts = [
        dataclasses.replace(
            a, metrics={k: v for j, (k, v) in enumerate(a.metrics.items()) if j != i}
        )
        for a in report_artifacts.realistic(tmp_path)
    ]
    page = Page(render(artifacts, tmp_path))
    assert page.faults == []
    assert "None" not in page.text and "nan" not in page.text.split()


def test_an_empty_run_says_not_measured_and_shows_no_invented_number(tmp_path: Path) -> None:
    page = Page(render(report_artifacts.bare(tmp_path), tmp_path))
    assert page.text.count(NOT_MEASURED) > 20
    cards = page.text[: page.text.index("Read this first")]
    assert not re.search(r"\d", cards.replace("A run", "").split("Lineage")[-1])


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_mistyped_metrics_never_break_the_page(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A value of another type than the contract's reads as missing."""
    odd = st.sampled_from(
        [
            None,
            True,
            -1,
            0,
            1e300,
            1e-300,
            "text",
            [],
            {},
            [None],
            [[1]],
            {"a": None},
            {"": {"": "x"}},
        ]
    )
    artifacts = report_artifacts.realistic(Path("unused"))
    stage = data.draw(st.integers(0, len(artifacts) - 1))
    metrics = copy.deepcopy(dict(artifacts[stage].metrics))
    target: Any = metrics
    while True:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(target[key], (dict, list)) or not target[key] or data.draw(st.booleans()):
            target[key] = data.draw(odd)
            break
        target = target[key]
    artifacts[stage] = dataclasses.replace(artifacts[stage], metrics=metrics)
    assert Page(render(artifacts, tmp_path_factory.mktemp("odd"))).faults == []


def test_a_blank_title_is_refused() -> None:
    with pytest.raises(ConfigError, match="title is blank"):
        ReportConfig("  ")
