"""Every hostile input of the collection costs itself: it is refused in one line, quarantined or
read, and the process goes on.

The table says for each what a user sees. Kinds that are not in the collection are made here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.data.fasttext_models import write_model
from tests.support.hostile_settings import ROOT, Worker, made_model

CASES = next(
    (place for up in ROOT.parents if (place := up / "shared/cases/security").is_dir()),
    ROOT.parent / "shared/cases/security",
)
pytestmark = pytest.mark.timeout(200)

DECIMAL = "quarantined: wrong type: InvalidOperation where a value becomes one of Python"
ARROW = "quarantined: unreadable Arrow: from row 1 on (ArrowInvalid)"
LEVELS = "quarantined: over the limit: a Parquet schema of more than 254 levels"
HEADERS = "read 1; quarantined: damaged file: broken tar (more than 16 headers for one member)"
BELOW_ZERO = "read 1; quarantined: damaged file: broken tar (a size below zero)"
END_OF_DATA = "quarantined: damaged file: broken tar (unexpected end of data)"
MEMBER = "quarantined: broken tar: a member is damaged (ReadError)"
HOLES = "read 1; quarantined: over the limit: holes in the members of an archive of more than"
WINDOW = "stream needs a window of more than 536,870,912 bytes; raise source.max_record_bytes"
BUCKETS = "refused: it has n-grams and no buckets for them"
SETTINGS = "refused: its settings are not those of a model"
NO_ROWS = "refused: it has 0 rows, too few for its words and n-grams"
TABLES = "refused: its tables do not fit each other"
LONG_TABLE = "refused: a table is longer than the file"
NUMBERS = "refused: its numbers of words and labels contradict each other"
NO_UTF8 = "refused: 'utf-8' codec can't decode byte 0xff in position 9"
REPEATS = "repeats what can match in several ways, which may take exponential time"
DIGITS = "refused: cannot be read as JSON (a number of more than 100 digits)"
NO_SAFETENSORS = "refused: is cut off or not a safetensors file (Error while deserializing header: "

FASTTEXT = {
    "ft_cpp_ns_bucket0.bin": BUCKETS,
    "ft_cpp_ns_dim_huge.bin": SETTINGS,
    "ft_cpp_ns_fewrows.bin": NO_ROWS,
    "ft_cpp_ns_rows_huge.bin": LONG_TABLE,
    "ft_cpp_ns_rows_neg.bin": TABLES,
    "ft_cpp_ns_size_huge.bin": NUMBERS,
    "ft_cpp_ns_size_neg.bin": NUMBERS,
    "ft_cpp_softmax_bucket0.bin": BUCKETS,
    "ft_cpp_softmax_dim_huge.bin": SETTINGS,
    "ft_cpp_softmax_fewrows.bin": NO_ROWS,
    "ft_cpp_softmax_rows_huge.bin": LONG_TABLE,
    "ft_cpp_softmax_rows_neg.bin": TABLES,
    "ft_cpp_softmax_size_huge.bin": NUMBERS,
    "ft_cpp_softmax_size_neg.bin": NUMBERS,
    "ft_cpp_v11.bin": TABLES,
    "ft_dim0.bin": SETTINGS,
    "ft_dup_place.bin": "refused: its n-grams are pruned and its rows are not quantised",
    "ft_label_nonutf8.bin": NO_UTF8,
    "ft_maxn_1024.bin": "read 1",
    "ft_minn_gt.bin": "read 1",
    "ft_minn_neg.bin": "read 1",
    "ft_neg_counts.bin": "refused: entry 2 of its words is not that of a model",
    "ft_neg_place.bin": "refused: its n-grams are in no bucket",
    "ft_no_label.bin": "refused: it has no labels",
    "ft_ok.bin": "read 1",
    "ft_one_label.bin": "read 1",
    "ft_size_2e31.bin": NUMBERS,
}
"""What becomes of models of fastText, which two settings take."""

EXPECTED: dict[str, dict[str, str]] = {
    "source": {
        "decimal_bad.arrow": DECIMAL,
        "ipc_list.arrow": ARROW,
        "ipc_offsets.arrow": ARROW,
        "ipc_offsets_far.arrow": ARROW,
        "ipc_offsets_neg.arrow": ARROW,
        "ipc_ok.arrow": "read 4",
        "ipc_textoff.arrow": ARROW,
        "pq_depth_1000.parquet": LEVELS,
        "pq_depth_3000.parquet": LEVELS,
        "pq_depth_6000.parquet": LEVELS,
        "pq_depth_10000.parquet": LEVELS,
        "tar_longname_chain.tar.gz": HEADERS,
        "tar_pax_chain.tar.gz": HEADERS,
        "tar_pax_mtime.tar": "read 2",
        "tar_pax_size_-1024.tar": BELOW_ZERO,
        "tar_pax_size_-1536.tar": BELOW_ZERO,
        "tar_pax_size_99999999999999999999.tar": f"read 1; {MEMBER}; {END_OF_DATA}",
        "tar_pax_size_nan.tar": (
            "read 1; quarantined: damaged file: broken tar (no header where one should be)"
        ),
        "tar_pax_sparse.tar": "read 1; quarantined: damaged file: broken tar",
        "tar_pax_sparse00.tar": HOLES,
        "tar_pax_sparse01.tar": "read 1; quarantined: damaged file: broken tar",
        "tar_size_2e62_x.bin.tar": f"read 1; {END_OF_DATA}",
        "tar_size_2e62_x.jsonl.tar": f"read 1; {MEMBER}; {END_OF_DATA}",
        "tar_sparse_csv.tar": HOLES,
        "tar_sparse_html.tar": HOLES,
        "tar_sparse_jsonl.tar": HOLES,
        "tar_sparse_parquet.tar": HOLES,
        "tar_sparse_txt.tar": HOLES,
        "tar_sparse_warc.tar": HOLES,
        "xz_dict_prop38.jsonl.xz": f"quarantined: damaged file: a xz {WINDOW}",
        "xz_dict_prop39.jsonl.xz": f"quarantined: damaged file: a xz {WINDOW}",
        "xz_dict_prop40.jsonl.xz": f"quarantined: damaged file: a xz {WINDOW}",
        "zst_window2G.jsonl.zst": f"quarantined: damaged file: a zstd {WINDOW}",
    },
    "language": FASTTEXT,
    "score": FASTTEXT | {"ft_no_label.bin": "refused: it has 0 outputs for 0 labels or words"},
    "tokenizer": {
        "tok_added_huge.json": "refused: id 4294967295 is not a whole number up to 16,777,215",
        "tok_deep.json": "refused: is not JSON (nested deeper than 64 levels)",
        "tok_deep_paren.json": "refused: nests groups more than 32 levels deep",
        "tok_nested_repeat.json": f"refused: '((a{{1,1000}}){{1,1000}}){{1,1000}}' {REPEATS}",
        "tok_redos1.json": f"refused: '(a+)+$' {REPEATS}",
        "tok_redos2.json": f"refused: '(a|aa)+$' {REPEATS}",
        "tok_redos3.json": f"refused: '(.*)*x' {REPEATS}",
        "tok_redos_backref.json": f"refused: {REPEATS}",
        "tok_vocab_id.json": "refused: id 4294967295 is not a whole number up to 16,777,215",
    },
    "shards": {
        "ds_list": "refused: In column 0: Invalid: Offset invariant failure",
        "ds_notlist": "refused: one column input_ids of lists of whole numbers; it has 1, of int64",
        "ds_offsets": "refused: In column 2: Invalid: Offset invariant failure",
        "ds_offsets_far": "refused: In column 2: Invalid: Offset invariant failure",
        "ds_offsets_neg": "refused: array starts at negative offset -4000",
        "ds_ok": "read 4",
        "ds_textoff": "refused: In column 3: Invalid: Offset invariant failure",
        "ds_traverse": "refused: which is not an .arrow file of its folder",
    },
    "model": {
        "hf_automap": "refused: num_hidden_layers (1) is wrong, the files hold 0 tensors",
        "hf_cfg_bigint": DIGITS,
        "hf_cfg_digits": DIGITS,
        "hf_cfg_dim1e12": "refused: hidden_size (1,000,000,000,000) must be at most",
        "hf_cfg_heads_gt": "refused: num_attention_heads (1,000,000,000) must be at most",
        "hf_cfg_layers1e7": "refused: num_hidden_layers (10,000,000) must be at most",
        "hf_cfg_layers1e9": "refused: num_hidden_layers (1,000,000,000) must be at most",
        "hf_cfg_maxpos1e12": "refused: max_position_embeddings (1,000,000,000,000) must be",
        "hf_cfg_vocab1e18": "refused: vocab_size (1,000,000,000,000,000,000) must be at most",
        "hf_idx_traverse": "refused: '../../../etc/passwd', which is not a file of its folder",
        "hf_pickle_only": "refused: only safetensors are read",
        "hf_st_beyond": f"{NO_SAFETENSORS}incomplete metadata, file not fully covered",
        "hf_st_empty": f"{NO_SAFETENSORS}header too small",
        "hf_st_hugehdr": f"{NO_SAFETENSORS}header too large",
        "hf_st_mul_ovf": f"{NO_SAFETENSORS}overflow computing buffer size",
        "hf_st_overlap": f"{NO_SAFETENSORS}invalid offset",
        "hf_st_symlink": "refused: only safetensors are read",
    },
}
"""Setting → input → what became of it; of a refusal, a part of its line."""

needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason=f"{CASES} is not there")


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with Worker(tmp_path_factory.mktemp("hostile")) as one:
        yield one


def agrees(outcome: str, expected: str) -> bool:
    """Whether a refusal names its reason; anything else begins as expected, and what is read is
    read as a whole."""
    kind, _, part = expected.partition(": ")
    if kind == "refused":
        return outcome.startswith("refused: textmill: ") and part in outcome
    return outcome.startswith(expected) if part else outcome == expected


@needs_cases
@pytest.mark.parametrize(
    ("setting", "name"), [(setting, name) for setting, names in EXPECTED.items() for name in names]
)
def test_a_hostile_input_costs_itself(setting: str, name: str, worker: Worker) -> None:
    outcome = worker.outcome(setting, CASES / name)
    assert agrees(outcome, EXPECTED[setting][name]), outcome


@needs_cases
def test_the_table_names_every_input_of_the_collection() -> None:
    there = {path.name for path in CASES.iterdir()} - {"README.md"}
    assert there == {name for names in EXPECTED.values() for name in names}
    assert EXPECTED["language"].keys() == EXPECTED["score"].keys()


SOUND = "<p>some words of a page that are its main content</p>"
PAGES: dict[str, tuple[Callable[[], str], str]] = {
    "elements in elements": (lambda: "<div>" * 100_000, "quarantined: page out of bounds"),
    "marks in marks": (lambda: "<p>" + "<b><i>" * 50_000 + "words", "read 1"),
    "tables in tables": (lambda: "<table><tr><td>" * 20_000, "read 1"),
    "a huge attribute": (lambda: f'<p title="{"x" * 2_000_000}">words</p>', "read 1"),
    "many attributes": (
        lambda: f"<p {' '.join(f'a{i}' for i in range(200_000))}>words</p>",
        "quarantined: page out of bounds",
    ),
    "many character references": (lambda: f"<p>{'&amp;' * 1_000_000}</p>", "read 1"),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_hostile_page_costs_itself(name: str, worker: Worker, tmp_path: Path) -> None:
    made, expected = PAGES[name]
    page = tmp_path / "page.html"
    page.write_text(f"<html><body>{SOUND}{made()}{SOUND}", "utf-8")
    outcome = worker.outcome("source", page)
    assert agrees(outcome, expected), outcome


def test_entities_that_expand_exponentially_are_not_expanded(
    worker: Worker, tmp_path: Path
) -> None:
    grown = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 8}">' for i in range(1, 30))
    page = tmp_path / "page.html"
    page.write_text(f'<!DOCTYPE html [<!ENTITY e0 "a">{grown}]><p>&e29;</p>{SOUND}', "utf-8")
    assert worker.outcome("source", page) == "read 1"


def test_code_in_the_folder_of_a_model_is_not_run(worker: Worker, tmp_path: Path) -> None:
    folder = made_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {"auto_map": {"AutoConfig": "evil.Config"}, "trust_remote_code": True}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')", "utf-8")
    assert worker.outcome("model", folder).startswith("read ")
    assert not (tmp_path / "run").exists()


def test_a_model_without_dimensions_is_refused(worker: Worker, tmp_path: Path) -> None:
    outcome = worker.outcome("language", write_model(tmp_path / "a.bin", dim=0))
    assert agrees(outcome, SETTINGS), outcome


def test_buckets_that_a_pruned_model_only_claims_take_no_memory(
    worker: Worker, tmp_path: Path
) -> None:
    file = write_model(tmp_path / "a.bin", quantised=True, pruned=True)
    assert worker.outcome("language", file) == "read 1"
    data = bytearray(file.read_bytes())
    data[40:44] = (2**31 - 1).to_bytes(4, "little")
    file.write_bytes(data)
    outcome = worker.outcome("language", file)
    assert agrees(outcome, "refused: it has 2147483647 buckets, which is too many to prune"), (
        outcome
    )


HOSTILE_SETTINGS = {
    "a crash": ("crash", "the process ended: SIGSEGV"),
    "no end": ("spin", "the process ended: SIGPROF"),
    "much memory": ("fill", "refused: textmill: out of memory"),
    "a defect": ("fail", "raised ZeroDivisionError: "),
}


@pytest.mark.parametrize("name", HOSTILE_SETTINGS)
def test_what_the_other_tests_refuse_is_seen(name: str, worker: Worker) -> None:
    what, expected = HOSTILE_SETTINGS[name]
    assert worker.outcome("wrong", Path(what)).startswith(expected)
    assert not any(agrees(expected, said) for said in ("refused: a line", "read 1"))
