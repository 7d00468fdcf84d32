"""Every setting that takes a path refuses an address, which would otherwise become a local
folder."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import cli
from flows.compose import RunConfig, compose
from llm_core.config import ConfigError, build, to_plain

ADDRESSES = ["s3://bucket/x", "s3:/bucket/x", "s3:", "file:///x", "hf://datasets/me/x"]


def leaves(hint: Any, wrap: Any = lambda value: value) -> Iterator[Any]:
    """For each place of a path in values of a type, the function that puts a value there."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Path:
        yield wrap
    elif dataclasses.is_dataclass(hint):
        for field, of_field in typing.get_type_hints(hint).items():
            yield from leaves(of_field, lambda value, field=field: wrap({field: value}))
    elif origin in (typing.Union, types.UnionType):
        for one in arguments:
            yield from leaves(one, wrap)
    elif origin is tuple:
        yield from leaves(arguments[0], lambda value: wrap([value]))
    elif origin is dict:
        yield from leaves(arguments[1], lambda value: wrap({"named": value}))


def name_of(value: Any) -> str:
    step = next(iter(value)) if isinstance(value, dict) else "0" if isinstance(value, list) else ""
    return (
        f"{step}.{name_of(value[step] if isinstance(value, dict) else value[0])}".rstrip(".")
        if step
        else ""
    )


def overlaid(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {name: overlaid(below.get(name), value) for name, value in above.items()}


SOUND = to_plain(compose(["run=demo"]))
SETTINGS = {name_of(put("")): put for put in leaves(RunConfig)}


def test_the_walk_finds_settings_at_every_depth() -> None:
    wanted = {
        "store",
        "state",
        "source.cache",
        "source.sources.named.root",
        "dedup.index",
        "train.init_from",
        "pii.key_file",
    }
    assert wanted <= SETTINGS.keys() and len(SETTINGS) >= 20


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_takes_a_path_refuses_an_address(setting: str) -> None:
    for address in ADDRESSES:
        with pytest.raises(
            ConfigError, match=r"is an address, and must be a path of this machine.*name a local"
        ) as refused:
            build(RunConfig, overlaid(SOUND, SETTINGS[setting](address)))
        assert f"({address})" in str(refused.value)


@pytest.mark.parametrize("path", ["a:b/c", "s3/bucket", "C:/x", "./s3:/x", "/data/s3:/x", "~/x"])
def test_a_path_with_a_colon_stays_a_path(path: str) -> None:
    assert compose([f"store='{path}'"]).store == Path(path)


@pytest.mark.parametrize(
    "words",
    [
        *(
            [command, f"{setting}=gs://bucket/x"]
            for command in ("refresh", "plan", "gc", "up")
            for setting in ("store", "state")
        ),
        ["explain", "some-id", "store=gs://bucket/x"],
        ["export-shards", "megatron", "gs://bucket/x"],
    ],
    ids=" ".join,
)
def test_a_place_elsewhere_is_one_line_and_leaves_no_folder(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert "(gs://bucket/x) is an address" in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["store", "state"])
@pytest.mark.parametrize("inside", [".", "deep/er"])
def test_a_source_that_holds_what_a_run_writes_is_refused(
    place: str, inside: str, tmp_path: Path
) -> None:
    places = {"store": tmp_path / "beside", "state": tmp_path / "too"}
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    places[place] = corpus / inside
    given = [f"source.paths=['{corpus}']", *(f"{name}='{path}'" for name, path in places.items())]
    with pytest.raises(ConfigError, match=f"contains {place} .*would read what it writes"):
        compose(given)


def test_a_source_may_lie_beside_or_below_the_store(tmp_path: Path) -> None:
    corpus = tmp_path / "store" / "imported"
    corpus.mkdir(parents=True)
    places = [f"store='{tmp_path / 'store'}'", f"state='{tmp_path / 'corpus-state'}'"]
    assert compose([f"source.paths=['{corpus}']", *places]).source.paths == (str(corpus),)
