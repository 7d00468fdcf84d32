"""Buckets of S3, read by s3fs from a real server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_core.config import ConfigError
from tasks.ingest import remotefiles, retries
from tasks.ingest.sourcefiles import list_files
from tests.support.data.refusing_server import refusing_server


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    """A bucket of a real S3 server, in this process."""
    server_module = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    patch = pytest.MonkeyPatch()
    server = server_module.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    for name, value in {
        "ACCESS_KEY_ID": "key",
        "SECRET_ACCESS_KEY": "hidden-key",
        "DEFAULT_REGION": "us-east-1",
    }.items():
        patch.setenv(f"AWS_{name}", value)
    patch.setenv("AWS_ENDPOINT_URL", endpoint)
    client = boto3.client("s3")
    client.create_bucket(Bucket="texts")
    yield client
    server.stop()
    patch.undo()


def test_bucket_is_listed_fetched_and_kept(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remotefiles, "PIECE_BYTES", 1000)
    data = {f"crawl/{i}/part.jsonl": b'{"text": "%d"}\n' % i * 100 for i in range(3)}
    for key, body in {**data, "crawl/readme.pptx": b"PK"}.items():
        bucket.put_object(Bucket="texts", Key=key, Body=body)
    found = list_files(["s3://texts/crawl/*/*.jsonl"], None, tmp_path / "cache").files
    assert {name: file.read_bytes() for name, file in found.items()} == {
        k.removeprefix("crawl/"): v for k, v in data.items()
    }
    assert list_files(["s3://texts/crawl/"], None, tmp_path / "cache").files == found
    bucket.put_object(Bucket="texts", Key="crawl/1/part.jsonl", Body=b'{"text": "new"}\n')
    changed = list_files(["s3://texts/crawl/"], None, tmp_path / "cache").files
    assert [name for name in found if found[name] != changed[name]] == ["1/part.jsonl"]
    assert changed["1/part.jsonl"].read_bytes() == b'{"text": "new"}\n'


@pytest.mark.parametrize(
    ("path", "words"),
    [("s3://texts/nowhere.jsonl", "it is not there"), ("s3://no-bucket/*.jsonl", "no")],
)
def test_bucket_that_cannot_be_read_is_one_line(
    bucket: Any, path: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        list_files([path], None, tmp_path)
    assert (
        words in str(caught.value)
        and path in str(caught.value)
        and "hidden-key" not in str(caught.value)
    )


@pytest.mark.parametrize(
    ("status", "code", "words", "passes"),
    [
        (403, "AccessDenied", "access is denied (AccessDenied)", False),
        (403, "InvalidAccessKeyId", "access is denied (InvalidAccessKeyId)", False),
        (400, "ExpiredToken", "access is denied (ExpiredToken)", False),
        (400, "InvalidToken", "HTTP status 400 (InvalidToken)", False),
        (404, "NoSuchBucket", "it is not there", False),
        (400, "InvalidArgument", "HTTP status 400 (InvalidArgument)", False),
        (400, "Any&#10;\u001bthing", "HTTP status 400", False),
        (400, "RequestTimeout", "HTTP status 400 (RequestTimeout)", True),
        (500, "InternalError", "HTTP status 500 (InternalError)", True),
    ],
)
def test_only_refusals_that_may_pass_are_asked_for_again(
    bucket: Any,
    status: int,
    code: str,
    words: str,
    passes: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.01)
    # fsspec would use the file system of the other endpoint again.
    monkeypatch.setattr(pytest.importorskip("s3fs").S3FileSystem, "_cache", {})
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    with refusing_server(status, body) as (address, asked), pytest.raises(ConfigError) as caught:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        list_files(["s3://texts/x/"], None, tmp_path)
    assert f"({words})" in str(caught.value) and "\n" not in str(caught.value)
    assert len(asked) == (retries.ATTEMPTS if passes else 1), asked


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"AWS_PROFILE": "nowhere"}, "AWS_PROFILE names no profile"),
        ({"AWS_SECRET_ACCESS_KEY": None}, "a part of the credentials is missing"),
        ({"AWS_DEFAULT_REGION": "no region"}, "do not work: InvalidRegionError"),
        (
            {"AWS_PROFILE": "failing", "AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None},
            "do not work: CredentialRetrievalError",
        ),
    ],
)
def test_credentials_that_do_not_work_are_one_line_at_once(
    bucket: Any,
    settings: dict[str, str | None],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tmp_path / "config"
    config.write_text("[profile failing]\ncredential_process = /bin/false\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in settings.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(pytest.importorskip("s3fs").S3FileSystem, "_cache", {})
    waits: list[float] = []
    monkeypatch.setattr("tasks.ingest.retries.time.sleep", waits.append)
    with pytest.raises(ConfigError) as caught:
        list_files(["s3://texts/x/"], None, tmp_path / "cache")
    assert words in str(caught.value) and "hidden-key" not in str(caught.value)
    assert "\n" not in str(caught.value) and waits == []


def test_address_of_a_folder_without_its_slash_is_an_error_that_writes_it(
    bucket: Any, tmp_path: Path
) -> None:
    bucket.put_object(Bucket="texts", Key="spark/part.jsonl/part-0", Body=b'{"text": "a"}\n')
    for form in (None, "jsonl"):
        with pytest.raises(
            ConfigError, match="s3://texts/spark is a folder; write s3://texts/spark/"
        ):
            list_files(["s3://texts/spark"], None, tmp_path, form=form)


def test_globs_and_folders_elsewhere_take_what_those_here_take(bucket: Any, tmp_path: Path) -> None:
    keys = [
        "x/part.jsonl/0",
        "x/part.jsonl/more/1",
        "x/part.jsonl/_SUCCESS",
        "x/a[1].jsonl",
        "x/ab.jsonl",
        "x/.old.jsonl",
    ]
    keys += ["x/.git/b.jsonl", "x/card.json", "x/b[1]/c.jsonl"]
    for key in keys:
        bucket.put_object(Bucket="texts", Key=key, Body=b'{"text": "%s"}\n' % key.encode())
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_text("")
    bucket.put_object(Bucket="texts", Key="x/mark/", Body=b"")

    for path in (
        "x/",
        "x/*",
        "x/part.*",
        "x/**/0",
        "x/b[1]/",
        "x/a[1].jsonl",
        "x/a?.jsonl",
        "x/*.json",
        "x/ab.jsonl",
    ):
        here = list_files([f"{tmp_path}/{path}"], tmp_path / "x", tmp_path, form="jsonl")
        there = list_files([f"s3://texts/{path}"], None, tmp_path / "cache", form="jsonl")
        names = [str(file.relative_to(tmp_path / "x")) for file in here.files.values()]
        assert [file.read_text() for file in there.files.values()] == [
            f'{{"text": "x/{name}"}}\n' for name in names
        ], path
    of_folders = list_files(["s3://texts/x/*/"], None, tmp_path / "cache", form="jsonl").files
    assert list(of_folders) == [
        "b[1]/c.jsonl",
        "part.jsonl/0",
        "part.jsonl/_SUCCESS",
        "part.jsonl/more/1",
    ]
