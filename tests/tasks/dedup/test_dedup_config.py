"""Bad settings of deduplication are named with their rule; bands are chosen if none are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_core.config import ConfigError, build
from tasks.dedup.config import DedupConfig
from tasks.dedup.signatures import choose_bands


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"num_perms": 100},
            r"num_perms \(100\) must be a multiple of num_bands \(14\); try num_bands=10",
        ),
        ({"num_bands": 0}, "must be a multiple of num_bands"),
        ({"threshold": 0.4}, "family_threshold"),
        ({"threshold": 1.5}, "threshold"),
        ({"survivor": ["length"]}, "end with id"),
        ({"survivor": ["length", "length", "id"]}, "once"),
        ({"survivor": ["weight", "id"]}, "not a choice"),
        ({"shingle_units": 0}, "shingle_units"),
        ({"full_bucket_documents": 1}, "full_bucket_documents"),
        ({"seed": -1}, "seed"),
        ({"num_perm": 128}, "did you mean num_perms"),
    ],
)
def test_a_bad_setting_is_named_with_its_rule(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(DedupConfig, values, "dedup")


def test_bands_can_be_left_to_datasketch() -> None:
    config = DedupConfig(num_bands=None, num_family_bands=None)
    (bands, rows), (family_bands, family_rows) = choose_bands(config)
    assert bands * rows <= 112 and family_bands * family_rows <= 112
    assert family_rows < rows


def test_bands_that_datasketch_cannot_choose_are_asked_for() -> None:
    with pytest.raises(
        ConfigError, match=r"no bands of num_perms \(2\) for a similarity of 1\.0 .*; set num_bands"
    ):
        choose_bands(DedupConfig(num_perms=2, num_bands=None, num_family_bands=2, threshold=1.0))


def test_every_choice_in_conf_builds() -> None:
    yaml = pytest.importorskip("yaml")
    files = sorted((Path(__file__).resolve().parents[3] / "conf" / "dedup").glob("*.yaml"))
    assert {f.stem for f in files} >= {"minhash", "exact"}
    configs = {f.stem: build(DedupConfig, yaml.safe_load(f.read_text("utf-8"))) for f in files}
    assert configs["minhash"] == DedupConfig()
