"""Checks recall and precision on documents whose personal data is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.data.pii_truth import main, pii_recall
from tasks.definitions.pii_kinds import LABELLED
from tasks.pii.config import PiiConfig
from tasks.pii.stage import find_pii
from tasks.runtime.artifact import ArtifactMismatch
from tests.support.data.make_artifacts import empty_dir, ingest_files, write_jsonl

SAMPLE = Path(__file__).parents[2] / "data" / "sample"


def _lines(name: str) -> list[dict]:
    with (SAMPLE / name).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_recall_counts_covered_spans_of_the_right_type_in_code_points(tmp_path) -> None:
    texts = ["é bob@x.org and 8.8.4.4", "at 127.0.0.1; 9.9.9.300 amy@x.org"]
    write_jsonl(
        tmp_path / "a.jsonl", [{"id": f"d{i}", "text": text} for i, text in enumerate(texts)]
    )
    source = ingest_files(tmp_path, "in", [tmp_path / "a.jsonl"], id_column="id")
    pii = find_pii(source, empty_dir(tmp_path / "pii"), PiiConfig())
    spans = [
        [["email", 2, 11], ["ip", 16, 23]],
        [["ip", 3, 12], ["ip", 14, 23], ["email", 24, 33], ["name", 0, 2]],
    ]
    truth = write_jsonl(
        tmp_path / "pii.jsonl", [{"id": f"d{i}", "spans": s} for i, s in enumerate(spans)]
    )
    for place in (truth, tmp_path):
        found = pii_recall(pii, source, place)
        assert found["pii_email_recall"] == 1 and found["pii_email_recall_count"] == [2, 2]
        assert found["pii_ip_recall_count"] == [1, 2] and found["pii_ip_on_every_machine"] == 1
        every = found[
            "pii_ip_all_recall_count"
        ]  # 127.0.0.1 is known too, whether or not anybody looks for it
        assert every == [1, 3] and found["pii_ip_all_recall"] == pytest.approx(1 / 3)
        assert found["pii_ip_recall_interval"][0] < 0.5 < found["pii_ip_recall_interval"][1]
        assert "pii_name_recall" not in found  # not looked for
    write_jsonl(truth, [{"id": "other", "spans": spans[0]}])
    with pytest.raises(ArtifactMismatch, match="names no document"):
        pii_recall(pii, source, truth)
    with pytest.raises(ArtifactMismatch, match=r"pii\.jsonl"):
        pii_recall(pii, source, tmp_path / "in")
    assert main([str(tmp_path)] * 2) == 2 and main([str(tmp_path), str(tmp_path), str(truth)]) == 2


def test_offsets_may_count_a_byte_order_mark_that_ingest_took(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"id": "marked", "text": "\ufeffask bob@x.org"}])
    source = ingest_files(tmp_path, "in", [tmp_path / "a.jsonl"], id_column="id")
    pii = find_pii(source, empty_dir(tmp_path / "pii"), PiiConfig())
    truth = write_jsonl(tmp_path / "pii.jsonl", [{"id": "marked", "spans": [["email", 5, 14]]}])
    assert pii_recall(pii, source, truth)["pii_email_recall"] == 1


def test_precision_on_the_sample_holds_its_floors_and_is_what_the_report_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Labels were given by eye to spans as they were found: e-mail and names sampled, the rest
    all."""
    labels = _lines("pii_labels.jsonl")
    assert main([]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {
        name: tuple(result[f"pii_{name.lower()}_precision_count"]) for name in LABELLED
    } == LABELLED
    assert set(LABELLED) == {label["type"] for label in labels}
    assert (
        result["pii_email_precision_count"][1] >= 245
        and result["pii_email_precision_interval"][0] > 0.98
    )
    assert (
        result["pii_name_precision_count"][1] >= 240
        and result["pii_name_precision_interval"][0] > 0.95
    )
    assert (
        result["pii_ip_precision_count"][1] >= 33 and result["pii_ip_precision_interval"][0] > 0.8
    )
    assert result["pii_phone_precision"] == 1
    assert all("value" not in label and "text" not in label for label in labels)
