"""A signature means the same here and in datasketch, and datasketch finds the candidates we
find."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasketch import MinHash, MinHashLSH
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from tasks.dedup.config import DedupConfig
from tasks.dedup.datasketch_exchange import (
    export_signatures,
    from_datasketch,
    match_signatures,
    shingle_hashes,
    to_datasketch,
    write_minhashes,
)
from tasks.kernels.dedup.banding import band_table, candidate_pairs
from tests.support.data.dedup_runs import document_id, mixed_corpus, run


@settings(deadline=None, max_examples=20)
@given(st.text(max_size=60), st.sampled_from([16, 112]), st.integers(0, 3))
def test_a_signature_survives_the_journey(text: str, num_perms: int, seed: int) -> None:
    made = MinHash(num_perms, seed=seed, hashfunc=int)
    made.update_batch(shingle_hashes(text, 1).tolist())
    row = from_datasketch(made, num_perms, seed)
    assert row.dtype == np.uint32
    back = to_datasketch(row, seed)
    assert back == made
    back.update_batch(shingle_hashes(text + " more", 1).tolist())  # goes on as one made there does
    made.update_batch(shingle_hashes(text + " more", 1).tolist())
    assert back == made


def test_exported_signatures_are_those_datasketch_makes_of_the_texts(tmp_path: Path) -> None:
    config = DedupConfig(keep_index=True)
    documents = mixed_corpus()
    artifact, _ = run(tmp_path, documents, config)
    text_of = {document_id(d["name"]): d["text"] for d in documents}
    file = tmp_path / "signatures.parquet"
    count = export_signatures(artifact, config, file)
    rows = pq.read_table(file).to_pylist()
    exported = {row["id"]: to_datasketch(row["hashvalues"], config.seed) for row in rows}
    assert count == len(rows) == len(exported)
    assert len(exported) == len({d["text"] for d in documents if len(d["text"].split()) >= 5})
    for document, minhash in exported.items():
        oracle = MinHash(config.num_perms, seed=config.seed, hashfunc=int)
        oracle.update_batch(shingle_hashes(text_of[document], 5).tolist())
        assert minhash == oracle


@pytest.mark.parametrize("banding", [(14, 8), (28, 4), (5, 3)])
def test_datasketch_finds_the_same_candidates(banding: tuple[int, int]) -> None:
    documents = mixed_corpus()
    sets = [shingle_hashes(d["text"], 2) for d in documents]
    rows = []
    lsh = MinHashLSH(num_perm=112, params=banding)
    for number, hashes in enumerate(sets):
        minhash = MinHash(112, seed=1, hashfunc=int)
        minhash.update_batch(hashes.tolist())
        rows.append(from_datasketch(minhash, 112, 1))
        lsh.insert(number, minhash)
    theirs = {
        pair
        for i, row in enumerate(rows)
        for pair in itertools.product([i], lsh.query(to_datasketch(row, 1)))
    }
    ours = candidate_pairs(band_table(np.array(rows), [banding]), full_bucket=len(rows))
    assert len(ours) > 20
    assert {(int(p) >> 32, int(p) & 0xFFFFFFFF) for p in ours} == {
        (a, b) for a, b in theirs if a < b
    }


def test_signatures_that_mean_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scheme=legacy, and signatures here have affine32; make"):
        from_datasketch(MinHash(16, seed=1, scheme="legacy"), 16, 1)
    with pytest.raises(ValueError, match="seed=2"):
        from_datasketch(MinHash(16, seed=2), 16, 1)
    with pytest.raises(ValueError, match="num_perm=16"):
        from_datasketch(MinHash(16, seed=1), 112, 1)
    artifact, _ = run(tmp_path, [{"name": "a", "text": "some text"}])
    with pytest.raises(ConfigError, match="keep_index=true"):
        export_signatures(artifact, DedupConfig(), tmp_path / "signatures.parquet")


def test_signatures_of_datasketch_match_the_near_duplicates_in_an_index(tmp_path: Path) -> None:
    config = DedupConfig(keep_index=True)
    documents = mixed_corpus()
    artifact, _ = run(tmp_path, documents, config)
    known = dict.fromkeys(d["text"] for d in documents if len(d["text"].split()) >= 5)
    made = {}
    for number, text in enumerate(known):
        made[str(number).encode()] = MinHash(config.num_perms, seed=config.seed, hashfunc=int)
        made[str(number).encode()].update_batch(shingle_hashes(text, 5).tolist())
    file = tmp_path / "theirs.parquet"
    assert write_minhashes(made.items(), config, file) == len(known)
    found = list(match_signatures(artifact, config, file))
    text_of = {document_id(d["name"]): d["text"] for d in documents}
    texts = list(known)
    itself = {theirs for theirs, ours, equal in found if text_of[ours] == texts[int(theirs)]}
    assert itself == set(made)
    for theirs, ours, equal in found:
        oracle = MinHash(config.num_perms, seed=config.seed, hashfunc=int)
        oracle.update_batch(shingle_hashes(text_of[ours], 5).tolist())
        assert equal == made[theirs].jaccard(oracle) >= config.threshold
    assert len(found) > len(made), "near duplicates beside the texts themselves"


def test_files_without_signatures_or_with_other_ones_are_refused(tmp_path: Path) -> None:
    config = DedupConfig(keep_index=True)
    artifact, _ = run(tmp_path, mixed_corpus(), config)
    other = tmp_path / "other.parquet"
    write_minhashes([(b"a", MinHash(112, seed=2, hashfunc=int))], replace(config, seed=2), other)
    plain, text = tmp_path / "plain.parquet", tmp_path / "text"
    pq.write_table(pa.table({"id": [b"a"]}), plain)
    text.write_text("no table", "utf-8")
    for file, message in (
        (other, "seed=2, and signatures here have 1; make it with"),
        (plain, "holds no signatures"),
        (text, "holds no signatures"),
        (tmp_path / "nowhere", "is not a file"),
    ):
        with pytest.raises(ConfigError, match=message):
            list(match_signatures(artifact, config, file))
