"""Signatures are datasketch's, shingles are what the definition says, and bands meet as often as
theory has it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.corpus.documentset import text_buffers
from tasks.kernels.dedup.banding import band_table, candidate_pairs, collision_probability
from tasks.kernels.dedup.minhash import EMPTY, count_equal, make_permutations, update_signature
from tasks.kernels.dedup.shingles import (
    document_shingles,
    make_scratch,
    shingle_sets,
    sign_documents,
    unit_hashes,
)
from tasks.kernels.text.pieces import find_pieces
from tasks.kernels.text.windows import find_anchors, find_windows
from tasks.kernels.text.windows import make_scratch as windows_scratch
from tests.support.data.any_bytes import BYTES, assert_neighbours_do_not_matter
from tests.support.data.shingles_by_definition import (
    MASK,
    TABLES,
    encode,
    shingles_by_definition,
    units_by_definition,
)

SAMPLE = Path(__file__).resolve().parents[4] / "data" / "sample" / "sample.jsonl"


def sample_texts(step: int = 20) -> list[str]:
    with SAMPLE.open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in list(lines)[::step]]


def signature_of(shingles: np.ndarray, num_perms: int = 112, seed: int = 1) -> np.ndarray:
    signature = np.full(num_perms, EMPTY, np.uint32)
    update_signature(shingles, *make_permutations(num_perms, seed), signature)
    return signature


def datasketch_signature(shingles: np.ndarray, num_perms: int = 112, seed: int = 1) -> np.ndarray:
    oracle = MinHash(num_perms, seed=seed, hashfunc=int)
    oracle.update_batch((shingles >> np.uint64(32)).tolist())
    return oracle.hashvalues


def shingles_of(buf: np.ndarray, n: int) -> list[int]:
    out = np.zeros(buf.size + 1, np.uint64)
    return out[: document_shingles(buf, 0, buf.size, n, *TABLES, out)].tolist()


texts = st.text(
    st.sampled_from("aZ \u3000é'’_9ßİ,./*-#\n漢字กำ\u0301\u200d!😀"), max_size=40
) | st.text(max_size=40)


@settings(deadline=None, max_examples=100)
@given(texts)
def test_fast_walk_gives_the_units_of_the_general_walk(text: str) -> None:
    buf, out = encode(text), np.zeros(len(text.encode()) + 1, np.uint64)
    assert out[: unit_hashes(buf, 0, buf.size, *TABLES, out)].tolist() == units_by_definition(text)


@settings(deadline=None, max_examples=100)
@given(BYTES)
def test_fast_walk_gives_the_units_of_the_general_walk_on_bytes_that_are_no_text(
    data: bytes,
) -> None:
    buf, out = np.frombuffer(data, np.uint8), np.zeros(len(data) + 1, np.uint64)
    assert out[: unit_hashes(buf, 0, buf.size, *TABLES, out)].tolist() == units_by_definition(data)


def test_fast_walk_gives_the_units_of_the_general_walk_on_real_text() -> None:
    for text in sample_texts():
        buf, out = encode(text), np.zeros(len(text.encode()) + 1, np.uint64)
        assert out[: unit_hashes(buf, 0, buf.size, *TABLES, out)].tolist() == units_by_definition(
            text
        )


@settings(deadline=None, max_examples=100)
@given(texts, st.integers(1, 6))
def test_shingles_follow_their_definition(text: str, n: int) -> None:
    assert shingles_of(encode(text), n) == shingles_by_definition(text, n)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["* ", " * ", "*\t", "- ", "• ", "|* ", "/* ", "*/ ", "**/ ", "/*/ ", "\r", "<!-- "]
            ),
            st.sampled_from(["small " * 8, "Large " * 8, "few", "", "é", "* a"]),
            st.sampled_from(["", "", " *|", " |", "*", " •", " *\r", " / ", " / b", " */"]),
        ),
        max_size=12,
    ).map(lambda lines: "\n".join(map("".join, lines)))
)
def test_comments_follow_their_definition(text: str) -> None:
    assert shingles_of(encode(text), 1) == shingles_by_definition(text, 1)


def test_comment_goes_on_behind_a_slash_and_ends_with_several_asterisks() -> None:
    star = set(shingles_of(encode("/* a\n* b"), 1)) - set(shingles_of(encode("/* a b"), 1))
    assert len(star) == 1
    assert star <= set(shingles_of(encode("/* this / that\n* b"), 1))
    for closed in ("/* a */\n* b", "/* a\n**/\n- b\n* c"):
        assert not star & set(shingles_of(encode(closed), 1))


@pytest.mark.parametrize("sign", [" * ", "|* ", "   - "])
def test_signs_before_the_lines_of_a_wrapped_text_are_units_and_bullets_are_not(sign: str) -> None:
    lines = [f"permission number {i} is granted to persons who use it" for i in range(6)]
    plain, behind = "\n".join(lines), "\n".join(sign + line for line in lines)
    items = "\n".join(sign + line.capitalize() for line in lines)
    assert shingles_of(encode(plain), 5) == shingles_of(encode(items), 5)
    boxed = "\n".join(line + " *|" for line in lines)
    for signed in (behind, boxed):
        assert not set(shingles_of(encode(plain), 11)) & set(shingles_of(encode(signed), 11))


def test_whatever_three_characters_follow_each_other_their_shingles_follow_the_definition() -> None:
    kinds = "a-'/* \n9_é\xa0\xadж。’\u3000漢ก\u0e33\u0301\u200d😀𠀀"
    for text in map("".join, itertools.product(kinds, repeat=3)):
        assert shingles_of(encode(text), 1) == shingles_by_definition(text, 1)


def test_shingles_ignore_case_bullets_and_dashes_but_neither_order_nor_comment_signs() -> None:
    documents = [
        "The cat, sat - on MATS!",
        "• the cat\n* sat // on mats",
        "the sat cat on mats",
        "the cat\n // sat on mats",
        "//\tthe cat sat on",
    ]
    buf, begins = text_buffers(pa.array(documents, pa.large_string()))
    scratch = make_scratch(begins)
    shingles, sizes = shingle_sets((buf, begins), np.arange(5), 3, TABLES, scratch)
    one, two, *others, last = (part.tolist() for part in np.split(shingles, np.cumsum(sizes)[:-1]))
    assert one == two == sorted(set(one))
    for other in others:
        assert len(set(one) & set(other)) == (other is others[1])  # `sat on mats`
    assert len(last) == 3
    assert len(set(last) & set(one)) == 2


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, MASK), max_size=50),
    st.sampled_from([2, 16, 112, 128]),
    st.integers(0, 9),
)
def test_signatures_are_bit_for_bit_those_of_datasketch(
    shingles: list[int], num_perms: int, seed: int
) -> None:
    hashes = np.array(shingles, np.uint64)
    np.testing.assert_array_equal(
        signature_of(hashes, num_perms, seed), datasketch_signature(hashes, num_perms, seed)
    )


def test_signed_documents_match_datasketch_on_real_text() -> None:
    documents = sample_texts(60)
    buf, begins = text_buffers(pa.array(documents, pa.large_string()))
    rows = np.arange(0, len(documents), 2)
    signatures = np.full((rows.size, 112), EMPTY, np.uint32)
    counts = sign_documents(
        buf, begins, rows, 5, TABLES, make_permutations(112, 1), make_scratch(begins), signatures
    )
    for row, count, signature in zip(rows, counts, signatures, strict=True):
        shingles = shingles_by_definition(documents[row], 5)
        assert len(shingles) == count
        np.testing.assert_array_equal(
            signature, datasketch_signature(np.array(shingles, np.uint64))
        )


def pairs_of_sets(similarity: float, num_pairs: int, seed: int) -> list[np.ndarray]:
    """Sets 2i and 2i + 1 have this Jaccard similarity, others none."""
    random = np.random.default_rng(seed)
    union = 400
    both = round(similarity * union)
    sets = []
    for _ in range(num_pairs):
        hashes = random.integers(0, 1 << 63, union, dtype=np.uint64) * np.uint64(
            2
        ) + random.integers(0, 2, union, dtype=np.uint64)
        middle = both + (union - both) // 2
        sets += [hashes[:middle], np.concatenate([hashes[:both], hashes[middle:]])]
    return sets


@pytest.mark.parametrize("similarity", [0.1, 0.5, 0.8, 0.95])
def test_estimates_are_unbiased_with_the_standard_error_of_theory(similarity: float) -> None:
    num_pairs = 300
    signatures = np.array([signature_of(s) for s in pairs_of_sets(similarity, num_pairs, 7)])
    pairs = np.arange(0, 2 * num_pairs, 2)
    estimates = count_equal(signatures, pairs, pairs + 1) / 112
    sigma = np.sqrt(similarity * (1 - similarity) / 112)
    assert abs(estimates.mean() - similarity) < 4 * sigma / np.sqrt(num_pairs)
    assert 0.8 * sigma < estimates.std() < 1.2 * sigma


@pytest.mark.parametrize("banding", [(14, 8), (28, 4)])
@pytest.mark.parametrize("similarity", [0.5, 0.7, 0.8])
def test_recall_of_banding_lies_on_the_s_curve(similarity: float, banding: tuple[int, int]) -> None:
    num_pairs = 300
    signatures = np.array([signature_of(s) for s in pairs_of_sets(similarity, num_pairs, 11)])
    found = set(candidate_pairs(band_table(signatures, [banding]), 16).tolist())
    recall = sum(((2 * i) << 32) | (2 * i + 1) in found for i in range(num_pairs)) / num_pairs
    expected = collision_probability(similarity, *banding)
    # Bands are not independent draws within a pair of finite sets, pairs are: binomial spread.
    assert abs(recall - expected) < 4 * np.sqrt(expected * (1 - expected) / num_pairs) + 0.01


@pytest.mark.slow
@pytest.mark.parametrize("similarity", [0.7, 0.75, 0.8, 0.85, 0.9])
def test_recall_lies_within_a_hundredth_of_the_s_curve(similarity: float) -> None:
    num_pairs = 20_000
    signatures = np.array([signature_of(s) for s in pairs_of_sets(similarity, num_pairs, 13)])
    pairs = candidate_pairs(band_table(signatures, [(14, 8)]), 16)
    a, b = pairs >> np.uint64(32), pairs & np.uint64(0xFFFFFFFF)
    recall = int(((b == a + np.uint64(1)) & (a % np.uint64(2) == 0)).sum()) / num_pairs
    assert abs(recall - collision_probability(similarity, 14, 8)) < 0.01


@settings(max_examples=60, deadline=None)
@given(BYTES, BYTES, st.integers(1, 3), st.booleans())
def test_any_bytes_have_shingles_pieces_and_windows_within_themselves(
    data: bytes, beside: bytes, size: int, by_line: bool
) -> None:
    middle = np.array([1])

    def shingles(buf: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, ...]:
        return shingle_sets((buf, begins), middle, size, TABLES, make_scratch(begins))

    def pieces(buf: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, ...]:
        owners, starts, stops, reaches = find_pieces(buf, begins, middle, by_line, size, *TABLES)
        assert all(
            begins[1] <= a < b <= c <= begins[2]
            for a, b, c in zip(starts, stops, reaches, strict=True)
        )
        return owners, starts - begins[1], stops - begins[1], reaches - begins[1]

    def windows(buf: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, ...]:
        scratch = windows_scratch(begins)
        chosen = np.unique(find_anchors(buf, begins, middle, 20, TABLES, scratch))
        return find_windows(buf, begins, middle, 20, chosen, TABLES, scratch)

    for find in (shingles, pieces):
        assert_neighbours_do_not_matter(data, beside, find)
    assert_neighbours_do_not_matter(data * 8, beside, windows)
