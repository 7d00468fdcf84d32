"""Buckets of Google Cloud Storage, read by gcsfs from an emulator on loopback."""

from __future__ import annotations

import gzip
import io
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from llm_core.config import ConfigError
from tasks.ingest import remotefiles, retries
from tasks.ingest.sourcefiles import list_files, list_unfetched
from tasks.ingest.sources import SourceConfig
from tasks.ingest.stage import ingest
from tests.support.data.make_artifacts import empty_dir, read_documents
from tests.support.data.refusing_server import refusing_server

gcsfs = pytest.importorskip("gcsfs", "2025.9")
Put = Callable[..., None]
LINES = b"".join(json.dumps({"text": f"line {i}"}).encode() + b"\n" for i in range(130))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 1,000 bytes, no credentials, and nobody asked for them."""
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(remotefiles, "PIECE_BYTES", 1000)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    gcsfs.core.GCSFileSystem.clear_instance_cache()


@pytest.fixture(scope="module")
def put() -> Iterator[Put]:
    """Puts an object into the bucket `texts` of an emulator."""
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    patch = pytest.MonkeyPatch()
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket="texts")
    server.start()
    server._api._httpd.handle_error = lambda *of_whom: (
        None
    )  # gcsfs breaks off what it need not know any more
    address = "http://{}:{}".format(*server._api._httpd.server_address)
    patch.setenv("STORAGE_EMULATOR_HOST", address)

    def put(name: str, data: bytes, **facts: str) -> None:
        about = json.dumps({"name": name, **facts}).encode()
        parts = (
            b"".join(
                b"--B\r\nContent-Type: application/json\r\n\r\n" + part + b"\r\n"
                for part in (about, data)
            )
            + b"--B--\r\n"
        )
        where = f"{address}/upload/storage/v1/b/texts/o?uploadType=multipart&name={quote(name, safe='')}"  # noqa: E501
        kind = {"Content-Type": "multipart/related; boundary=B"}
        with urllib.request.urlopen(urllib.request.Request(where, parts, kind)) as answer:
            assert answer.status == 200

    yield put
    server.stop()
    patch.undo()


def test_bucket_gives_the_documents_of_its_files(put: Put, tmp_path: Path) -> None:
    table = io.BytesIO()
    pq.write_table(pa.table({"text": [f"row {i}" for i in range(200)]}), table)
    page = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>A page about ships, and about the"
        b" sea they sail on.</p>"
    )
    head = (
        "WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://x.example/\r\nContent-Length:"
        f" {len(page)}\r\n"
    )
    record = f"{head}Content-Type: application/http\r\n\r\n".encode() + page + b"\r\n\r\n"
    files = {
        "crawl/a.jsonl.zst": zstandard.compress(LINES),
        "crawl/more/b.parquet": table.getvalue(),
        "crawl/more/c%20[1] #.warc.gz": gzip.compress(record),
    }
    for name, body in files.items():
        put(name, body)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(body)
    put("crawl/", b"")  # as the console makes a folder
    here = read_documents(
        ingest(empty_dir(tmp_path / "o"), SourceConfig(name="s", paths=(str(tmp_path / "crawl"),)))
    )
    assert len(here) == 130 + 200 + 1
    config = SourceConfig(name="s", paths=("gs://texts/crawl/",), cache=tmp_path / "cache")
    assert read_documents(ingest(empty_dir(tmp_path / "there"), config)) == here
    for path, names in (
        ("crawl/*", files),
        ("crawl/more/", list(files)[1:]),
        ("crawl/more/c%20[1] #.warc.gz", list(files)[2:]),
    ):
        found = list_files([f"gcs://texts/{path}"], None, tmp_path / "cache").files
        assert [file.read_bytes() for file in found.values()] == [files[name] for name in names]


def test_object_is_fetched_once_and_a_changed_one_again(put: Put, tmp_path: Path) -> None:
    for name in "ab":
        put(f"twice/{name}.jsonl", LINES)
    assert [file.size_bytes for file in list_unfetched(["gs://texts/twice/"], tmp_path)] == [
        len(LINES)
    ] * 2
    before = list_files(["gs://texts/twice/"], None, tmp_path).files
    assert {file.read_bytes() for file in before.values()} == {LINES}
    assert list_unfetched(["gs://texts/twice/*"], tmp_path) == []
    put("twice/b.jsonl", b'{"text": "new"}\n')
    after = list_files(["gs://texts/twice/"], None, tmp_path).files
    assert (
        after["a.jsonl"] == before["a.jsonl"]
        and after["b.jsonl"].read_bytes() == b'{"text": "new"}\n'
    )


@pytest.mark.parametrize(("name", "is_unpacked"), [("a.jsonl", True), ("a.jsonl.gz", False)])
def test_object_that_is_stored_compressed_is_read_as_its_name_says(
    name: str, is_unpacked: bool, put: Put, tmp_path: Path
) -> None:
    packed = gzip.compress(LINES)
    put(f"packed/{name}", packed, contentEncoding="gzip")
    (file,) = list_files([f"gs://texts/packed/{name}"], None, tmp_path).files.values()
    assert file.read_bytes() == (LINES if is_unpacked else packed)
    assert list_unfetched([f"gs://texts/packed/{name}"], tmp_path) == []


def test_object_that_is_not_compressed_as_its_store_says_is_one_line(
    put: Put, tmp_path: Path
) -> None:
    for name, body in {"cut": gzip.compress(LINES)[:-9], "plain": LINES}.items():
        put(f"unsound/{name}.jsonl", body, contentEncoding="gzip")
        with pytest.raises(
            ConfigError,
            match=rf"{name}\.jsonl is not valid gzip, although its Content-Encoding says so",
        ):
            list_files([f"gs://texts/unsound/{name}.jsonl"], None, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("gs://texts/nowhere.jsonl", "it is not there"),
        ("gs://no-bucket/*.jsonl", "it is not there"),
        ("gs://texts/nowhere/", "names no file with a reader"),
        ("gs://texts", "is a folder; write gs://texts/"),
    ],
)
def test_what_a_bucket_has_not_is_one_line(path: str, words: str, put: Put, tmp_path: Path) -> None:
    put("crawl/a.jsonl", LINES)
    with pytest.raises(ConfigError) as caught:
        list_files([path], None, tmp_path)
    assert (
        words in str(caught.value) and path in str(caught.value) and "\n" not in str(caught.value)
    )


@pytest.mark.parametrize(
    ("status", "said", "words"),
    [
        (
            401,
            "Anonymous caller does not have storage.objects.get access to the object.",
            "HTTP status 401",
        ),
        (
            403,
            "me@x.example does not have storage.objects.get access to the object.",
            "access is denied",
        ),
        (400, "Invalid bucket name: 'invalid'", "refused: Bad Request"),
        (
            400,
            "Bucket is requester pays bucket but no user project provided.",
            "set FSSPEC_GS_REQUESTER_PAYS to your project",
        ),
        (200, None, "the answer is not that of a store"),
    ],
)
def test_refusal_of_google_is_one_line_and_is_not_asked_for_again(
    status: int,
    said: str | None,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    body = json.dumps({"error": {"code": status, "message": said}}).encode() if said else b"<html>"
    with refusing_server(status, body) as (address, asked), pytest.raises(ConfigError) as caught:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        list_files([f"gs://texts-{status}/a.jsonl"], None, tmp_path)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert len(asked) <= 4 and not [
        r for r in caplog.records if r.name == "gcsfs"
    ]  # the object, and what is below it


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "the credentials in GOOGLE_APPLICATION_CREDENTIALS are invalid"),
        ("{", "the credentials in GOOGLE_APPLICATION_CREDENTIALS are invalid"),
        ("{}", "the credentials in GOOGLE_APPLICATION_CREDENTIALS are invalid"),
        ("refused key", "Google does not renew the credentials"),
    ],
)
def test_credentials_of_google_that_do_not_work_are_one_line_at_once(
    content: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    file, waits = tmp_path / "key.json", list[float]()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    monkeypatch.setattr("tasks.ingest.retries.time.sleep", waits.append)
    refusal = b'{"error": "invalid_grant", "error_description": "Invalid JWT Signature."}'
    with refusing_server(400, refusal) as (address, asked), pytest.raises(ConfigError) as caught:
        if content is not None:
            file.write_text(
                service_account(f"{address}/token") if content == "refused key" else content
            )
        list_files(["gs://texts/a.jsonl"], None, tmp_path / "cache")
    assert f"gs://texts/a.jsonl cannot be read ({words})" in str(caught.value)
    assert waits == [] and asked == (["/token"] if content == "refused key" else [])


def service_account(token_uri: str) -> str:
    """The file of a service account with a key of its own."""
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    forms = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
    )
    about = {"type": "service_account", "client_email": "me@x.example", "token_uri": token_uri}
    return json.dumps(about | {"private_key": key.decode(), "private_key_id": "1"})
