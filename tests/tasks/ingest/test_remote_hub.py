"""Datasets of Hugging Face's hub, read by its own package from a hub on loopback."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llm_core.config import ConfigError
from tasks.ingest import remotefiles, retries
from tasks.ingest.sourcefiles import list_files, list_unfetched
from tasks.ingest.sources import SourceConfig
from tasks.ingest.stage import ingest
from tests.support.data.hub_server import Hub, serve_hub
from tests.support.data.make_artifacts import empty_dir, read_documents


def table(*texts: str) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), stream)
    return stream.getvalue()


def files() -> dict[str, bytes]:
    lines = b"".join(json.dumps({"text": f"line {i}"}).encode() + b"\n" for i in range(130))
    return {
        "README.md": b"# A card",
        "dataset_infos.json": b"{}",
        "data/train-0.parquet": table("first", "second"),
        "data/train-1.parquet": table("third"),
        "data/more/rest.jsonl": lines,
        ".gitattributes": b"",
    }


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """A hub with one dataset and a package that takes it for its own."""
    pytest.importorskip("huggingface_hub", "1.0")
    import fsspec

    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(remotefiles, "PIECE_BYTES", 1000)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    revisions = {
        "main": files(),
        "v1": {"old.jsonl": b'{"text": "old"}\n'},
        "refs/convert/parquet": {"p/0.parquet": table("x")},
    }
    with serve_hub(revisions) as (address, handler):
        monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": address})
        yield handler


def fetches(hub: type[Hub]) -> list[str]:
    return [line for line in hub.asked if "/resolve/" in line]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("hf://datasets/me/texts/data/*.parquet", ["data/train-0.parquet", "data/train-1.parquet"]),
        (
            "hf://datasets/me/texts@main/data/*.parquet",
            ["data/train-0.parquet", "data/train-1.parquet"],
        ),
        (
            "hf://datasets/me/texts/data/",
            ["data/more/rest.jsonl", "data/train-0.parquet", "data/train-1.parquet"],
        ),
        ("hf://datasets/me/texts/**/rest.jsonl", ["data/more/rest.jsonl"]),
        (
            "hf://datasets/me/texts/",
            ["README.md", "data/more/rest.jsonl", "data/train-0.parquet", "data/train-1.parquet"],
        ),
    ],
)
def test_dataset_of_the_hub_gives_the_documents_of_its_files(
    path: str, names: list[str], hub: type[Hub], tmp_path: Path
) -> None:
    for name, body in files().items():
        (tmp_path / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "here" / name).write_bytes(body)
    there = ingest(
        empty_dir(tmp_path / "a"), SourceConfig(name="s", paths=(path,), cache=tmp_path / "cache")
    )
    root = tmp_path / "here" / ("data" if "/data/" in path else "")
    config = SourceConfig(
        name="s", paths=tuple(str(tmp_path / "here" / name) for name in names), root=root
    )
    here = ingest(empty_dir(tmp_path / "b"), config)
    assert read_documents(there) == read_documents(here) != []


@pytest.mark.parametrize(
    ("path", "revision"),
    [
        ("hf://datasets/me/texts@v1/old.jsonl", "v1"),
        ("hf://datasets/me/texts@refs/convert/parquet/p/*.parquet", "refs/convert/parquet"),
        ("hf://datasets/me/texts@refs%2Fconvert%2Fparquet/p/0.parquet", "refs/convert/parquet"),
    ],
)
def test_other_revisions_of_a_dataset_are_read_by_their_names(
    path: str, revision: str, hub: type[Hub], tmp_path: Path
) -> None:
    (file,) = list_files([path], None, tmp_path).files.values()
    assert [file.read_bytes()] == list(hub.revisions[revision].values())


def test_files_of_the_hub_come_in_pieces_and_those_that_have_not_changed_cost_no_request(
    hub: type[Hub], tmp_path: Path
) -> None:
    address = "hf://datasets/me/texts/data/"
    sizes = {path: len(body) for path, body in files().items() if path.startswith("data/")}
    assert {
        f.address.partition("texts/")[2]: f.size_bytes
        for f in list_unfetched([address], tmp_path / "cache")
    } == sizes
    assert fetches(hub) == []
    list_files([address], None, tmp_path / "cache")
    rest = sizes["data/more/rest.jsonl"]
    assert 2000 < rest < 3000
    asked = [line.rpartition("=")[2] for line in fetches(hub) if "rest.jsonl" in line]
    assert asked == ["0-999", "1000-1999", f"2000-{rest - 1}"]
    hub.asked.clear()
    list_files([address], None, tmp_path / "cache")
    assert list_unfetched([address], tmp_path / "cache") == []
    assert hub.asked and not [
        line for line in hub.asked if "POST" in line or "/resolve/" in line
    ], hub.asked


def test_process_that_has_seen_a_dataset_sees_what_became_of_it(
    hub: type[Hub], tmp_path: Path
) -> None:
    before = list_files(["hf://datasets/me/texts/data/*.parquet"], None, tmp_path).files
    hub.revisions["main"] |= {
        "data/train-1.parquet": table("changed"),
        "data/train-2.parquet": table("new"),
    }
    after = list_files(["hf://datasets/me/texts/data/*.parquet"], None, tmp_path).files
    assert [name for name in after if after[name] != before.get(name)] == [
        "train-1.parquet",
        "train-2.parquet",
    ]
    assert pq.read_table(after["train-1.parquet"])["text"].to_pylist() == ["changed"]


def test_file_of_the_hub_that_changes_while_it_is_fetched_is_not_kept(
    hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_into = remotefiles._fetch_into

    def overtaken(*arguments: Any) -> None:
        fetch_into(*arguments)
        hub.revisions["main"]["data/train-1.parquet"] = table("other")

    monkeypatch.setattr(remotefiles, "_fetch_into", overtaken)
    with pytest.raises(ConfigError, match="was changed while it was fetched; run again"):
        list_files(["hf://datasets/me/texts/data/train-1.parquet"], None, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "hf://datasets/me/nothing/data/*.parquet",
            "no such repository, or none that HF_TOKEN may see",
        ),
        ("hf://datasets/me/texts@v9/data/*.parquet", "the repository has no such revision"),
        ("hf://datasets/me/texts/none.jsonl", "it is not there"),
        ("hf://datasets/me/texts/none/", "names no file with a reader"),
        ("hf://datasets/me/texts/none/*.jsonl", "names no file with a reader"),
        ("hf://datasets/me/texts/data", "is a folder; write hf://datasets/me/texts/data/"),
        ("hf://datasets/me", "refused"),
        ("hf://", "refused"),
    ],
)
def test_what_the_hub_has_not_is_one_line(
    path: str, words: str, hub: type[Hub], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        list_files([path], None, tmp_path)
    assert (
        words in str(caught.value) and path in str(caught.value) and "\n" not in str(caught.value)
    )


def test_private_dataset_is_read_with_its_token_alone(
    hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_right-one"
    path = "hf://datasets/me/texts/data/train-1.parquet"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with pytest.raises(ConfigError, match="HTTP status 401") as caught:
        list_files([path], None, tmp_path)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert list(list_files([path], None, tmp_path).files) == ["train-1.parquet"]


def test_hub_that_is_busy_for_a_while_is_waited_for(
    hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    hub.failures[:] = [503, 429, 500]
    assert list(list_files(["hf://datasets/me/texts/data/*.parquet"], None, tmp_path).files)


def test_hub_out_of_reach_is_one_line(
    hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec
    import huggingface_hub.constants

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": "http://127.0.0.1:9"})
    with pytest.raises(ConfigError, match=r"texts/a\.jsonl cannot be read \(Connection refused\)"):
        list_files(["hf://datasets/me/texts/a.jsonl"], None, tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ConfigError, match=r"texts/a\.jsonl cannot be read \(HF_HUB_OFFLINE is set\)"
    ):
        list_files(["hf://datasets/me/texts/a.jsonl"], None, tmp_path)
