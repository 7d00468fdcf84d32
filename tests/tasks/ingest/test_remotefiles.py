"""Files elsewhere are listed, fetched once, resumed after a fault and explained in one line.

Against a real server on loopback.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from llm_core.config import ConfigError
from tasks.ingest import remotefiles, retries
from tasks.ingest.sourcefiles import list_files
from tasks.ingest.sources import SourceConfig
from tasks.ingest.stage import ingest
from tasks.runtime.artifact import digest_file
from tests.support.data.make_artifacts import empty_dir, read_documents, write_jsonl


class Server(SimpleHTTPRequestHandler):
    """Files of a folder with ETag and ranges; counts what is asked for, and fails when told to."""

    asked: list[str]
    failures: list[int]
    ranges = True

    def do_GET(self) -> None:
        self.asked.append(f"GET {self.path} {self.headers.get('Range', '')}".strip())
        if self.failures:
            status = self.failures.pop(0)
            if status:
                self.send_error(status)
            else:
                self.connection.close()  # in the middle of the conversation
            return
        path = Path(self.translate_path(self.path))
        wanted = self.headers.get("Range")
        if not wanted or not self.ranges or not path.is_file():
            super().do_GET()
            return
        begin, _, end = wanted.removeprefix("bytes=").partition("-")
        data = path.read_bytes()[int(begin) : int(end) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Range", f"bytes {begin}-{end}/{path.stat().st_size}")
        self.end_headers()
        self.wfile.write(data)

    def do_HEAD(self) -> None:
        self.asked.append(f"HEAD {self.path}")
        super().do_HEAD()

    def end_headers(self) -> None:
        path = Path(self.translate_path(self.path))
        if path.is_file():
            self.send_header("ETag", f'"{digest_file(path)}"')
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Path, type[Server]]]:
    """(address, folder that is served, its server's class)."""
    folder = empty_dir(tmp_path / "site")
    handler = type("Handler", (Server,), {"asked": [], "failures": []})
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(remotefiles, "PIECE_BYTES", 1000)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", folder, handler
    server.shutdown()
    server.server_close()


def fetches(handler: type[Server]) -> list[str]:
    return [
        line.split()[1]
        for line in handler.asked
        if line.startswith("GET") and not line.split()[1].endswith("/")
    ]


def test_files_of_a_site_are_read_like_files_here(
    site: tuple[str, Path, type[Server]], tmp_path: Path
) -> None:
    address, folder, _ = site
    write_jsonl(folder / "data" / "a.jsonl", [{"text": "first"}])
    write_jsonl(folder / "data" / "b c.jsonl", [{"text": "second"}])
    (folder / "data" / "notes.pptx").write_bytes(b"%PDF")
    by_glob = SourceConfig(name="s", paths=(f"{address}/data/*.jsonl",), cache=tmp_path / "cache")
    by_folder = SourceConfig(name="s", paths=(f"{address}/data/",), cache=tmp_path / "cache")
    here = SourceConfig(name="s", paths=(str(folder / "data"),))
    artifacts = [
        ingest(empty_dir(tmp_path / f"out{i}"), c) for i, c in enumerate((by_glob, by_folder, here))
    ]
    rows = [read_documents(artifact) for artifact in artifacts]
    assert [r["text"] for r in rows[0]] == ["first", "second"] and rows[0] == rows[1] == rows[2]


def test_unchanged_file_is_fetched_once_and_a_changed_one_again(
    site: tuple[str, Path, type[Server]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address, folder, handler = site
    caplog.set_level("INFO", "tasks.ingest.remotefiles")
    write_jsonl(folder / "a.jsonl", [{"text": "old"}])
    (first,) = list_files([f"{address}/a.jsonl"], None, tmp_path / "cache").files.values()
    asked = fetches(handler)
    assert asked == ["/a.jsonl"] and first.read_bytes() == (folder / "a.jsonl").read_bytes()
    (again,) = list_files([f"{address}/a.jsonl"], None, tmp_path / "cache").files.values()
    assert again == first and fetches(handler) == asked
    assert [record.getMessage() for record in caplog.records] == [
        f"fetching {address}/a.jsonl, 0.0 MB"
    ]
    write_jsonl(folder / "a.jsonl", [{"text": "new"}])
    (changed,) = list_files([f"{address}/a.jsonl"], None, tmp_path / "cache").files.values()
    assert changed != first and "new" in changed.read_text() and len(fetches(handler)) == 2


def test_a_plan_looks_at_what_is_elsewhere_and_fetches_nothing(
    site: tuple[str, Path, type[Server]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, folder, handler = site
    files = [
        write_jsonl(folder / "data" / f"{name}.jsonl", [{"text": f"text {name}"}] * 40)
        for name in "ab"
    ]
    places = [
        f"source.paths=['{address}/data/*.jsonl']",
        f"store={tmp_path / 'store'}",
        f"state={tmp_path / 'state'}",
    ]

    def plan() -> str:
        assert main(["plan", "refresh", "source=files", *places]) == 0
        return capsys.readouterr().out

    size = f"{sum(file.stat().st_size for file in files) / 1e6:.1f} MB"
    assert f"not read: 2 files, {size}, first {address}/data/a.jsonl" in plan()
    assert fetches(handler) == [] and not list(tmp_path.glob("store/.remote/*"))
    cache = tmp_path / "store" / ".remote"
    list_files([f"{address}/data/*.jsonl"], None, cache)
    fetched = len(fetches(handler))
    assert "not read" not in plan() and len(fetches(handler)) == fetched
    write_jsonl(folder / "data" / "b.jsonl", [{"text": "another"}])
    assert (
        f"not read: 1 file, 0.0 MB, first {address}/data/b.jsonl" in plan()
        and len(fetches(handler)) == fetched
    )


def test_fetch_goes_on_where_it_was_cut_off(
    site: tuple[str, Path, type[Server]], tmp_path: Path
) -> None:
    address, folder, handler = site
    (folder / "a.txt").write_bytes(bytes(range(256)) * 20)
    handler.failures[:] = [503] * 40
    with pytest.raises(ConfigError, match="HTTP status 503"):
        list_files([f"{address}/a.txt"], None, tmp_path / "cache").files
    handler.failures.clear()
    (part,) = (tmp_path / "cache").glob("*.part")
    part.write_bytes((folder / "a.txt").read_bytes()[:2500])
    handler.asked.clear()
    (file,) = list_files([f"{address}/a.txt"], None, tmp_path / "cache").files.values()
    assert file.read_bytes() == (folder / "a.txt").read_bytes()
    assert [line.split("=")[1] for line in handler.asked if "bytes=" in line] == [
        "2500-3499",
        "3500-4499",
        "4500-5119",
    ]
    assert list((tmp_path / "cache").iterdir()) == [file]


def test_runs_at_once_fetch_a_file_once(
    site: tuple[str, Path, type[Server]], tmp_path: Path
) -> None:
    address, folder, handler = site
    (folder / "a.txt").write_bytes(bytes(range(256)) * 200)
    with ThreadPoolExecutor(8) as runs:
        found = list(
            runs.map(
                lambda _: list_files([f"{address}/a.txt"], None, tmp_path / "cache").files,
                range(8),
            )
        )
    (file,) = {path for files in found for path in files.values()}
    assert file.read_bytes() == (folder / "a.txt").read_bytes()
    assert len(fetches(handler)) == 52 and list((tmp_path / "cache").iterdir()) == [file]


def test_trouble_that_passes_is_waited_for(
    site: tuple[str, Path, type[Server]], tmp_path: Path
) -> None:
    address, folder, handler = site
    (folder / "a.txt").write_bytes(b"x" * 2500)
    handler.failures[:] = [500, 0]
    (file,) = list_files([f"{address}/a.txt"], None, tmp_path / "cache").files.values()
    assert file.stat().st_size == 2500


def test_trouble_of_the_cache_is_not_told_as_one_of_the_server(
    site: tuple[str, Path, type[Server]], tmp_path: Path
) -> None:
    address, folder, handler = site
    (folder / "a.txt").write_bytes(b"x" * 2500)
    handler.failures[:] = [503] * 40
    with pytest.raises(ConfigError):
        list_files([f"{address}/a.txt"], None, tmp_path / "cache").files
    handler.failures.clear()
    (part,) = (tmp_path / "cache").glob("*.part")
    part.unlink()
    empty_dir(part)
    with pytest.raises(IsADirectoryError):
        list_files([f"{address}/a.txt"], None, tmp_path / "cache").files


def test_server_without_ranges_is_read_too(
    site: tuple[str, Path, type[Server]], tmp_path: Path
) -> None:
    address, folder, handler = site
    handler.ranges = False
    (folder / "a.txt").write_bytes(bytes(range(256)) * 20)
    (file,) = list_files([f"{address}/a.txt"], None, tmp_path / "cache").files.values()
    assert file.read_bytes() == (folder / "a.txt").read_bytes()
    part = file.with_name(f"{file.name}.part")
    file.unlink()
    part.write_bytes((folder / "a.txt").read_bytes()[:2500])
    (again,) = list_files([f"{address}/a.txt"], None, tmp_path / "cache").files.values()
    assert again == file and file.read_bytes() == (folder / "a.txt").read_bytes()


def test_names_are_relative_to_what_the_addresses_have_in_common(
    site: tuple[str, Path, type[Server]], tmp_path: Path
) -> None:
    address, folder, _ = site
    write_jsonl(folder / "x" / "a.jsonl", [{"text": "a"}])
    write_jsonl(folder / "y" / "a.jsonl", [{"text": "b"}])
    names = list_files(
        [f"{address}/y/a.jsonl", f"{address}/x/*.jsonl"], None, tmp_path / "cache"
    ).files
    assert list(names) == ["x/a.jsonl", "y/a.jsonl"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("{site}/nowhere.jsonl", ["nowhere.jsonl cannot be read", "HTTP status 404"]),
        ("{site}/empty/*.jsonl", ["names no file with a reader"]),
        ("{site}/a.pptx", ["a.pptx has no reader"]),
        ("http://127.0.0.1:9/a.jsonl", ["127.0.0.1:9/a.jsonl cannot be read", "run again"]),
        ("http://me:secret@127.0.0.1:9/a.jsonl", ["http://127.0.0.1/a.jsonl comes with a user"]),
        (
            "https://127.0.0.1:9/a.jsonl?sig=secret",
            ["https://127.0.0.1/a.jsonl comes with a user, a password or a query"],
        ),
        ("ftp://127.0.0.1/a.jsonl", ["ftp:// is not a place to read from", "s3://"]),
        ("gs://bucket/a.jsonl", ["pip install 'textmill[gs]'"]),
    ],
)
def test_address_that_cannot_be_read_is_one_line_without_secrets(
    path: str,
    words: list[str],
    site: tuple[str, Path, type[Server]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs.core", None)
    (site[1] / "a.pptx").touch()
    empty_dir(site[1] / "empty")
    with pytest.raises(ConfigError) as caught:
        list_files([path.format(site=site[0])], None, tmp_path / "cache")
    said = str(caught.value)
    assert said.startswith("source.paths: ") and "\n" not in said and "secret" not in said
    assert all(word in said for word in words), said


def test_refused_header_is_not_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(scheme: str) -> None:
        raise ValueError("Invalid header value b'Bearer hidden-key'")

    monkeypatch.setattr(remotefiles, "open_system", refuse)
    with pytest.raises(
        ConfigError, match=r"s3://texts/a\.jsonl cannot be read \(ValueError\)"
    ) as caught:
        list_files(["s3://texts/a.jsonl"], None, tmp_path)
    assert "hidden-key" not in str(caught.value)


def test_a_mistake_of_ours_is_not_told_as_one_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours: dict[str, Any] = {"__name__": "tasks.ingest.remotefiles"}
    exec("def fail(scheme):\n    raise ValueError('not enough values to unpack')", ours)
    monkeypatch.setattr(remotefiles, "open_system", ours["fail"])
    with pytest.raises(ValueError, match="^not enough values") as caught:
        list_files(["s3://texts/a.jsonl"], None, tmp_path)
    assert not isinstance(caught.value, ConfigError)


def test_files_here_and_elsewhere_are_two_sources(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"each a source of its own under source\.sources"):
        list_files(["https://x.example/a.jsonl", "b.jsonl"], None, tmp_path)
