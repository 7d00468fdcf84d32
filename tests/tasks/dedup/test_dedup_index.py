"""New documents against an index fare as in a run over all, in which the earlier ones are
preferred."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from llm_core.config import ConfigError
from tasks.dedup.config import INDEX_FILES, CutsConfig, DedupConfig
from tasks.dedup.index import Index, empty_index, open_index, write_index
from tasks.runtime.artifact import Artifact, ArtifactMismatch, digest_file
from tasks.runtime.stage import StageFailure
from tests.support.data.dedup_runs import document_id, kept, near_pairs, run, words

CONFIG = DedupConfig(
    survivor=("source_priority", "length", "id"),
    source_priority=("a", "b", "c"),
    full_bucket_documents=3,
    same_url=True,
    cuts=CutsConfig(pieces="paragraph", min_piece_units=4),
    keep_index=True,
)


def corpus(seed: int, count: int = 90) -> list[dict]:
    """Documents of sources a, b and c that are copies, near copies and relatives of few bases,
    share paragraphs and URLs."""
    rng = random.Random(seed)
    bases = [words(rng.getrandbits(30), rng.randint(3, 60)) for _ in range(count // 8)]
    paragraphs = [" ".join(words(rng.getrandbits(30), 6)) for _ in range(8)]
    documents = []
    for i in range(count):
        text = list(rng.choice(bases))
        for _ in range(rng.choice([0, 0, 1, 1, 2, 5])):
            text[rng.randrange(len(text))] = words(rng.getrandbits(30), 1)[0]
        whole = [" ".join(text)]
        if rng.random() < 0.3:
            whole.insert(rng.randrange(2), rng.choice(paragraphs))
        if rng.random() < 0.1:
            whole = [rng.choice(paragraphs)]
        documents.append(
            {
                "name": f"d{i}",
                "text": rng.choice(["", " "]) if rng.random() < 0.04 else "\n\n".join(whole),
                "source": rng.choice("abc"),
                "url": f"https://example.org/{rng.randrange(count)}#{i}"
                if rng.random() < 0.6
                else None,
            }
        )
    return documents


@pytest.fixture(scope="module")
def small_index(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DedupConfig]:
    """An index of four documents, three of them with shingles, and the config to open it with."""
    folder = tmp_path_factory.mktemp("index")
    config = DedupConfig(index=folder)
    rng, empty = np.random.default_rng(0), empty_index(config)
    numbers = {
        name: np.array(values)
        for name, values in {"num_shingles": [3, 0, 2, 4], "survivor": [0, 1, 0, 3]}.items()
    }
    index = replace(
        empty,
        **numbers,
        ids=pa.array([bytes([i]) * 16 for i in range(4)], empty.ids.type),
        exact_key=rng.integers(0, 2**63, (4, 2), np.uint64),
        blank=np.zeros(4, bool),
        family=np.array([0, 1, 0, 3]),
        cluster_size=np.array([2, 1, 0, 1]),
        url_key=rng.integers(0, 2**63, (2, 2), np.uint64),
        url_row=np.array([0, 3]),
        signatures=rng.integers(0, 2**32, (3, config.num_perms), np.uint32),
        bands=[rng.integers(0, 2**63, 3, np.uint64) for _ in empty.bands],
        shingles=np.arange(9, dtype=np.uint32),
        shingle_begins=np.array([0, 3, 5, 9]),
    )
    write_index(folder / "index", index, config)
    return folder, config


def is_sound(index: Index) -> bool:
    """Whether everything that compiled loops look up is there."""
    begins = index.shingle_begins
    named = np.concatenate([index.survivor, index.family, index.url_row])
    return bool(
        begins[0] >= 0
        and begins[-1] <= len(index.shingles)
        and (np.diff(begins) >= 0).all()
        and named.min() >= 0
        and named.max() < len(index)
        and len(begins) - 1 == len(index.signatures) == len(index.members) == len(index.bands[0])
    )


@pytest.mark.parametrize("name", INDEX_FILES)
def test_damaged_index_is_refused_or_still_names_only_what_is_there(
    name: str, small_index: tuple[Path, DedupConfig], tmp_path: Path
) -> None:
    folder, config = small_index
    shutil.copytree(folder / "index", tmp_path / "index")
    config, file = replace(config, index=tmp_path), tmp_path / "index" / name
    assert is_sound(open_index(config))
    data, rng = file.read_bytes(), random.Random(name)
    harms = [data[: len(data) * i // 8] for i in range(8)]
    for _ in range(150):
        harmed = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 8])):
            harmed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        harms.append(bytes(harmed))
    for harmed in [*harms, b"[]", b"null", b"{}"]:
        file.write_bytes(harmed)
        try:
            assert is_sound(open_index(config))
        except (ConfigError, ArtifactMismatch) as error:
            assert "index" in str(error)


def of(documents: list[dict], sources: str) -> list[dict]:
    return [d for d in documents if d["source"] in sources]


def all_pairs(artifact: Artifact) -> dict[tuple[bytes, bytes], dict]:
    earlier = artifact.path / "earlier_pairs.parquet"
    own = near_pairs(artifact)
    return own | (
        {(r["a"], r["b"]): r for r in pa.parquet.read_table(earlier).to_pylist()}
        if earlier.exists()
        else {}
    )


def index_digests(artifact: Artifact) -> dict[str, str]:
    return {file.name: digest_file(file) for file in artifact.files("index/*")}


@pytest.mark.parametrize("seed", range(3))
def test_one_after_another_is_the_same_as_all_at_once(tmp_path: Path, seed: int) -> None:
    documents = corpus(seed)
    whole, expected = run(tmp_path / "whole", documents, CONFIG, num_parts=3)
    reasons = {row["reason"] for row in expected.values()}
    assert reasons >= {None, "SAME_URL", "EXACT_DUPLICATE", "NEAR_DUPLICATE"} and any(
        r["cuts"] for r in expected.values()
    )
    before, index = 0, None
    pairs: dict[tuple[bytes, bytes], dict] = {}
    for number, source in enumerate("abc"):
        some = of(documents, source)
        artifact, rows = run(
            tmp_path / source, some, replace(CONFIG, index=index), num_parts=1 + number
        )
        grown = 0
        for name, row in rows.items():
            # What comes later adds to clusters and may name a family, but judges nobody who was
            # there.
            same = (
                row
                if source == "c"
                else row | {k: expected[name][k] for k in ("cluster_size", "family_id")}
            )
            assert same == expected[name]
            grown += row["kept"]
        pairs |= all_pairs(artifact)
        assert artifact.metrics["earlier_documents"] >= before
        before, index = before + grown, artifact.path
    assert pairs == near_pairs(whole)
    assert index_digests(artifact) == index_digests(whole)


def test_families_and_sizes_count_all_runs(tmp_path: Path) -> None:
    text = words(3, 80)
    one, two = " ".join(text), " ".join(words(4, 20) + text + words(5, 12))
    config = DedupConfig(keep_index=True)
    first, _ = run(
        tmp_path / "first", [{"name": "a", "text": one}, {"name": "b", "text": one.upper()}], config
    )
    later = [
        {"name": "c", "text": one + " more"},
        {"name": "d", "text": two},
        {"name": "e", "text": " ".join(words(9, 50))},
    ]
    artifact, rows = run(tmp_path / "second", later, replace(config, index=first.path))
    survivor = min("ab", key=document_id)
    assert kept(rows) == {"d", "e"}
    assert (
        rows["c"]["cluster_id"]
        == rows["c"]["family_id"]
        == rows["d"]["family_id"]
        == document_id(survivor)
    )
    assert rows["c"]["cluster_size"] == 3
    assert set(near_pairs(artifact)) == {(document_id("d"), document_id("c"))}
    assert {a for a, _ in set(all_pairs(artifact)) - set(near_pairs(artifact))} == {
        document_id(survivor)
    }
    assert artifact.counters["dropped"] == {"NEAR_DUPLICATE": 1}
    assert artifact.metrics["cluster_size_histogram"] == {"1": 2, "3": 1}


def test_earlier_text_is_never_read_again(tmp_path: Path) -> None:
    documents = corpus(1)
    first, _ = run(tmp_path / "first", of(documents, "a"), CONFIG)
    for file in (tmp_path / "first" / "ingest" / "documents").iterdir():
        file.unlink()
    _, rows = run(tmp_path / "second", of(documents, "bc"), replace(CONFIG, index=first.path))
    assert "NEAR_DUPLICATE" in {row["reason"] for row in rows.values()}


def test_documents_that_are_all_known_are_a_clear_failure(tmp_path: Path) -> None:
    config = DedupConfig(method="exact", keep_index=True)
    first, _ = run(tmp_path / "first", [{"name": "a", "text": "one text"}], config)
    with pytest.raises(
        StageFailure, match=r"keeps none of 2 documents \(EXACT_DUPLICATE 2\), because the index"
    ):
        again = [{"name": "b", "text": "One  text"}, {"name": "c", "text": "one text"}]
        run(tmp_path / "second", again, replace(config, index=first.path))


def test_an_exact_index_serves_an_exact_run(tmp_path: Path) -> None:
    config = DedupConfig(method="exact", keep_index=True)
    first, _ = run(tmp_path / "first", [{"name": "a", "text": "one text"}], config)
    second, rows = run(
        tmp_path / "second",
        [{"name": "b", "text": "One  text"}, {"name": "c", "text": "new"}],
        replace(config, index=first.path),
    )
    assert kept(rows) == {"c"}
    assert second.metrics["earlier_documents"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2}, "made with seed=1, and this run has 2; set dedup.seed as it was"),
        ({"shingle_units": 4}, "shingle_units"),
        ({"num_bands": 28}, "bands"),
        ({"method": "exact"}, "method"),
        ({"same_url": False}, "same_url"),
        ({"cuts": CutsConfig()}, r"cuts\.pieces"),
    ],
)
def test_an_index_made_in_another_way_is_refused(
    tmp_path: Path, change: dict, message: str
) -> None:
    documents = [{"name": "a", "text": "some text"}]
    first, _ = run(tmp_path / "first", documents, CONFIG)
    with pytest.raises(ConfigError, match=message):
        run(tmp_path / "second", documents, replace(CONFIG, index=first.path, **change))


def test_an_index_whose_hashes_mean_something_else_is_refused(tmp_path: Path) -> None:
    documents = [{"name": "a", "text": "some text"}]
    first, _ = run(tmp_path / "first", documents, CONFIG)
    file = first.path / "index" / "scheme.json"
    file.write_text(file.read_text("utf-8").replace('"version": 4', '"version": 3'), "utf-8")
    with pytest.raises(
        ArtifactMismatch, match=r"version 3, and this release reads 4; rebuild the index"
    ):
        run(tmp_path / "second", documents, replace(CONFIG, index=first.path))


def test_the_content_of_the_index_is_in_the_key_and_its_place_is_not(tmp_path: Path) -> None:
    from tasks.runtime.keys import key_config

    first, _ = run(tmp_path / "first", [{"name": "a", "text": "some text"}], CONFIG)
    config = replace(CONFIG, index=first.path)
    assert key_config(config) == key_config(CONFIG)
    assert set(config.input_files()) == {f"index/{f.name}" for f in first.files("index/*")}
    assert CONFIG.input_files() == {}


def test_an_index_is_found_by_its_key(tmp_path: Path) -> None:
    (tmp_path / "dedup" / "0123456789abcdef").mkdir(parents=True)
    config = replace(CONFIG, index=Path("0123456789abcdef")).in_store(tmp_path)
    assert config.index == tmp_path / "dedup" / "0123456789abcdef"
    with pytest.raises(ConfigError, match="keep_index=true"):
        config.input_files()
    assert CONFIG.in_store(tmp_path) == CONFIG


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    documents = [{"name": "a", "text": " ".join(words(1, 20))}]
    first, _ = run(tmp_path / "first", documents, CONFIG)
    file = first.path / "index" / "bands.arrow"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ArtifactMismatch, match=r"bands.arrow is damaged"):
        run(tmp_path / "second", documents, replace(CONFIG, index=first.path))
    file.unlink()
    with pytest.raises(ArtifactMismatch, match=r"bands.arrow is missing"):
        run(tmp_path / "third", documents, replace(CONFIG, index=first.path))


def test_an_index_whose_rows_are_dates_is_damaged(tmp_path: Path) -> None:
    documents = [{"name": "a", "text": " ".join(words(1, 20))}]
    first, _ = run(tmp_path / "first", documents, CONFIG)
    file = first.path / "index" / "documents.parquet"
    table = pa.parquet.read_table(file)
    place = table.schema.names.index("family")
    dates = table["family"].cast(pa.timestamp("us"))
    pa.parquet.write_table(table.set_column(place, "family", dates), file)
    with pytest.raises(ArtifactMismatch, match=r"index is damaged"):
        run(tmp_path / "second", documents, replace(CONFIG, index=first.path))
