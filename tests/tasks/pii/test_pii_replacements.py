"""What stands in the place of personal data, and that neither keys nor values get out."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import get_args

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError, build
from tasks.definitions.pii_kinds import FORM_TYPES
from tasks.pii.config import Action, PiiConfig
from tasks.pii.replacements import normal_form, pseudonym, replacements
from tasks.pii.scrub import apply_replacements
from tasks.pii.spans import find_all_spans
from tasks.pii.stage import find_pii
from tasks.runtime.keys import canonical_json, key_config
from tasks.runtime.parts import PartRunner, process_executor
from tasks.runtime.stage import StageFailure
from tests.support.data.make_artifacts import empty_dir, ingest_files, read_documents, write_jsonl
from tests.support.data.pii_examples import PIECES

KEY = "0123456789abcdef of a secret"


@pytest.fixture(autouse=True)
def _key(monkeypatch) -> None:
    monkeypatch.setenv("PII_KEY", KEY)


def _scrubbed(text: str, config: PiiConfig) -> str:
    data = text.encode()
    values = np.frombuffer(data, np.uint8)
    spans = find_all_spans(values, np.array([0, len(data)]), config)
    texts = replacements(values, spans, config.action_of, config.read_key()).to_pylist()
    return apply_replacements(data, zip(spans.starts, spans.ends, texts, strict=True)).decode()


def _config(**values) -> PiiConfig:
    return PiiConfig(types=FORM_TYPES, addresses_in_words=True, key_env="PII_KEY", **values)


@pytest.mark.parametrize("action", get_args(Action))
def test_scrubbing_twice_changes_nothing_whatever_the_action(action, monkeypatch) -> None:
    monkeypatch.setenv("PII_KEY", KEY)
    config = _config(action=action)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(PIECES, max_size=8).map("".join))
    def check(text: str) -> None:
        once = _scrubbed(text, config)
        assert _scrubbed(once, config) == once

    check()


def test_actions_of_single_types_win() -> None:
    config = _config(actions={"IP": "mask", "EMAIL": "pseudonym"})
    text = _scrubbed("bob@x.org Bob@X.org 8.8.4.4 4111 1111 1111 1111", config)
    first, second, *rest = text.split()
    assert (
        first == second
        and first.startswith("<EMAIL-")
        and first[7:-1].isalpha()
        and len(first) == 7 + 16 + 1
    )
    assert rest == ["*******", "<CARD>"]


def test_pseudonyms_are_equal_for_equal_values_and_keys_alone() -> None:
    assert pseudonym(b"a" * 16, "PHONE", b"+1 212-555-0199") == pseudonym(
        b"a" * 16, "PHONE", b"+1 (212) 555 0199"
    )
    made = {
        pseudonym(key, kind, value)
        for key in (b"a" * 16, b"b" * 16)
        for kind in ("IP", "MAC")
        for value in (b"1", b"2")
    }
    assert len(made) == 8
    assert (
        normal_form("API_KEY", b"aB") == b"aB"
        and normal_form("EMAIL", "É@x.org".encode()) == "é@x.org".encode()
    )


def test_a_number_in_digits_of_another_script_has_the_pseudonym_of_its_value() -> None:
    values = ("050-1234567", "٠٥٠-١٢٣٤٥٦٧", "０５０‍1234567", "٠٥٠-١٢٣٤٥٦٨")
    made = [pseudonym(b"a" * 16, "PHONE", value.encode()) for value in values]
    assert made[0] == made[1] == made[2] != made[3]


def test_keys_come_from_outside_and_only_their_digest_is_kept(tmp_path, monkeypatch) -> None:
    config = _config(action="pseudonym")
    assert KEY not in canonical_json(key_config(config)) and KEY.encode() not in pickle.dumps(
        config
    )
    assert config.key_id in canonical_json(key_config(config)) and "PII_KEY" not in canonical_json(
        key_config(config)
    )
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    assert PiiConfig(action="pseudonym", key_file=file).key_id == config.key_id
    assert replace(config) == config
    monkeypatch.setenv("PII_KEY", "another secret of enough bytes")
    assert _config(action="pseudonym").key_id != config.key_id
    with pytest.raises(ConfigError, match="key_id"):
        replace(config)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"action": "pseudonym"}, "key_env=VARIABLE"),
        ({"key_env": "NOT_THERE"}, "not set in the environment"),
        ({"key_env": "SHORT"}, "holds 5 bytes"),
        ({"key_file": "/no/such/file"}, "cannot be read"),
        ({"key_env": "PII_KEY", "key_file": "x"}, "exclude each other"),
        ({"action": "masc"}, "did you mean mask"),
        ({"actions": {"EMIAL": "tag"}}, "EMAIL"),
        ({"national_ids": ["US_SNS"]}, "US_SSN"),
    ],
)
def test_bad_settings_are_named_with_their_way_out(values, message, monkeypatch) -> None:
    monkeypatch.setenv("SHORT", "short")
    with pytest.raises(ConfigError, match=message) as caught:
        build(PiiConfig, values)
    assert "short" not in str(caught.value).replace("SHORT", "")


def test_documents_are_dropped_where_an_action_says_so(tmp_path) -> None:
    write_jsonl(
        tmp_path / "a.jsonl",
        [{"text": "é bob@x.org 8.8.4.4"}, {"text": "nothing"}, {"text": "4111 1111 1111 1111"}],
    )
    source = ingest_files(tmp_path, "in", [tmp_path / "a.jsonl"])
    config = PiiConfig(actions={"CARD": "drop_document", "EMAIL": "mask"})
    artifact = find_pii(source, empty_dir(tmp_path / "out"), config)
    rows = read_documents(artifact)
    assert [row["kept"] for row in rows] == [True, True, False]
    assert [span["replacement"] for row in rows for span in row["spans"]] == [
        "*********",
        "<IP>",
        "<CARD>",
    ]
    assert artifact.counters == {"read": 3, "kept": 2, "dropped": {"PII": 1}, "quarantined": 0}
    everything = PiiConfig(action="drop_document", types=("EMAIL", "CARD"))
    write_jsonl(tmp_path / "b.jsonl", [{"text": "bob@x.org"}])
    source = ingest_files(tmp_path, "in2", [tmp_path / "b.jsonl"])
    with pytest.raises(StageFailure, match="no document is left of 1"):
        find_pii(source, empty_dir(tmp_path / "out2"), everything)


def test_worker_processes_get_the_key_that_the_config_names(tmp_path) -> None:
    files = [tmp_path / f"{name}.jsonl" for name in "ab"]
    for file in files:
        write_jsonl(file, [{"text": f"bob@x.org in {file.name}"}])
    source = ingest_files(tmp_path, "in", files)
    two = find_pii(
        source,
        empty_dir(tmp_path / "two"),
        _config(action="pseudonym"),
        PartRunner(make_executor=process_executor(2)),
    )
    one = find_pii(source, empty_dir(tmp_path / "one"), _config(action="pseudonym"))
    assert read_documents(two) == read_documents(one) and len(read_documents(two)) == 2


def test_every_span_is_listed_without_its_value(tmp_path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"text": "bob@x.org, amy@x.org"}, {"text": "Bob@x.org"}])
    source = ingest_files(tmp_path, "in", [tmp_path / "a.jsonl"])
    plain = find_pii(source, empty_dir(tmp_path / "plain"), PiiConfig())
    keyed = find_pii(source, empty_dir(tmp_path / "keyed"), PiiConfig(key_env="PII_KEY"))
    listed = [pq.read_table(a.file("spans.parquet")).to_pylist() for a in (plain, keyed)]
    for rows in listed:
        assert [(row["start"], row["end"], row["type"]) for row in rows] == [
            (0, 9, "EMAIL"),
            (11, 20, "EMAIL"),
            (0, 9, "EMAIL"),
        ]
    hashes = [row["value_hash"] for row in listed[1]]
    assert hashes[0] == hashes[2] != hashes[1] and {len(h) for h in hashes} == {8}
    assert [row["value_hash"] for row in listed[0]] == [None] * 3
    for file in (tmp_path / "plain").iterdir():
        assert b"bob@x" not in file.read_bytes()


def test_without_a_key_nothing_is_kept_that_tells_one_value_from_another(tmp_path) -> None:
    """A digest that anybody can make is undone by trying: there are a billion social security
    numbers."""
    made = []
    for name, text in (
        ("one", "SSN 536-90-4399, ip 8.8.4.4"),
        ("two", "SSN 078-05-1121, ip 9.8.4.4"),
    ):
        write_jsonl(tmp_path / name / "a.jsonl", [{"text": text}])
        source = ingest_files(tmp_path, f"in-{name}", [tmp_path / name / "a.jsonl"])
        made.append(find_pii(source, empty_dir(tmp_path / f"out-{name}"), PiiConfig()))
    assert [span["type"] for row in read_documents(made[0]) for span in row["spans"]] == [
        "NATIONAL_ID",
        "IP",
    ]
    for file in ("spans.parquet", "part-00000.parquet"):
        assert made[0].file(file).read_bytes() == made[1].file(file).read_bytes()
