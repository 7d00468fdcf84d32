"""Texts and features that the rules of quality judge."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from llm_core.config import build
from tasks.corpus.documentset import read_table
from tasks.definitions.features import FEATURES
from tasks.language.config import LanguageConfig
from tasks.language.stage import identify_languages
from tasks.quality.config import QualityConfig
from tasks.quality.presets import PRESETS
from tasks.quality.rules import judge
from tasks.quality.stage import filter_quality
from tasks.runtime.artifact import Artifact
from tasks.scores.config import ScoresConfig
from tasks.scores.stage import score_documents
from tests.support.data.language_texts import documents_artifact
from tests.support.data.make_artifacts import empty_dir

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "data" / "sample" / "sample.jsonl"
NAMES = list(QualityConfig().rule_book().names)
FOR_PAGES = ("gopher", "fineweb_code")
"""Presets of `quality=gopher_fineweb`."""
PARAGRAPH = (
    "Water that falls on the hills runs down to the sea. Some of it stays in the ground, where"
    " roots can find it, and the rest goes its way through streams that nobody has ever named. In a"
    " dry summer most of these streams are gone by July, but the larger ones keep flowing because"
    " springs feed them from below."
)
THAI = "แม่น้ำไหลลงสู่ทะเล ฝนตกบนภูเขาทุกปี ชาวบ้านปลูกข้าวในฤดูฝน เด็กเล่นอยู่ริมฝั่งน้ำ ปลาว่ายผ่านสะพานเก่า"


def sample_texts() -> list[str]:
    return [json.loads(line)["text"] for line in SAMPLE.read_text("utf-8").splitlines()]


def filter_texts(
    tmp_path: Path, parts: Sequence[Sequence[str]], name: str = "q", **config: object
) -> tuple[Artifact, list[dict]]:
    ingest = documents_artifact(tmp_path / name / "ingest", parts)
    for stage in ("language", "quality"):
        (tmp_path / name / stage).mkdir()
    language = identify_languages(ingest, tmp_path / name / "language", LanguageConfig())
    scores = score_documents(
        ingest, language, empty_dir(tmp_path / name / "scores"), ScoresConfig()
    )
    artifact = filter_quality(
        ingest, language, scores, tmp_path / name / "quality", build(QualityConfig, config)
    )
    return artifact, [
        row for file in artifact.files("part-*.parquet") for row in read_table(file).to_pylist()
    ]


def broken_rules(row: dict) -> set[str]:
    return {name for bit, name in enumerate(NAMES) if row["verdict"] >> bit & 1}


def judge_one(
    config: QualityConfig,
    values: dict[str, float],
    language: str = "en",
    source: str = "web",
    kind: str | None = None,
) -> set[str]:
    """Names of the rules that a document with these features breaks; features that are not given
    break none."""
    features = {name: np.array([np.nan]) for name in FEATURES} | {"unsegmented_frac": np.zeros(1)}
    features |= {name: np.array([value]) for name, value in values.items()}
    book = config.rule_book()
    verdicts, _ = judge(
        book, features, *(np.array([label], object) for label in (source, language, kind))
    )
    return {name for bit, name in enumerate(book.names) if int(verdicts[0]) >> bit & 1}


RULES = [rule for rules in PRESETS.values() for rule in rules]
