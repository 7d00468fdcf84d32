"""The command line: what it says to trouble, its help, and what it composes."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from flows.cli import main
from flows.commands.table import COMMANDS, FLOWS
from flows.compose import compose
from flows.conf_files import CONF_DIR, choices, groups
from flows.sweeps.points import dimensions, listed_points
from llm_core.config import ConfigError
from tasks.runtime.artifact import Artifact
from tasks.runtime.store import Node
from tests.flows.conftest import RunCli


@pytest.mark.parametrize("place", ["store", "state"])
def test_place_that_cannot_be_written_is_one_line(
    place: str,
    places: list[str],
    stand_in_stages: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("in the way")
    arguments = [
        "source=sample",
        *places,
        f"{place}={tmp_path / 'file'}",
        "tracking=off",
        "orchestrator=none",
    ]
    assert main(["run", *arguments]) == 2 and stand_in_stages == []
    last = capsys.readouterr().err.splitlines()[-1]
    assert str(tmp_path / "file") in last and "another place" in last


def test_empty_path_is_not_the_current_directory() -> None:
    with pytest.raises(ConfigError, match=r"store \(''\) must be a path"):
        compose(["store="])


def test_want_of_memory_is_one_line(
    run_cli: RunCli, stand_in_stages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    from tasks.runtime.store import Store

    for error in (MemoryError(), pa.ArrowMemoryError("malloc of size 1 failed")):
        monkeypatch.setattr(Store, "publish", Mock(side_effect=error))
        result = run_cli("run")
        assert (
            result["code"] == 2
            and "out of memory" in result["err"].splitlines()[-1]
            and "Traceback" not in result["err"]
        )


@pytest.mark.parametrize(
    ("gone", "words"),
    [(False, "is not UTF-8; rename"), (True, "the current directory no longer exists")],
)
def test_current_directory_that_cannot_be_started_from_is_one_line(
    gone: bool,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(place)
    monkeypatch.chdir(os.fsdecode(place))
    if gone:
        os.rmdir(place)
    assert main(["plan", "source.paths=[a.jsonl]"]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EMFILE, errno.EIO]
)
def test_trouble_with_a_disk_is_one_line_and_the_next_run_goes_on(
    number: int, run_cli: RunCli, stand_in_stages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.runtime.store import Store

    def publish(store: Store, node: Node, *arguments: Any) -> Artifact:
        if node.stage == "shards":
            raise OSError(number, os.strerror(number), "/full/shards")
        return original(store, node, *arguments)

    original = Store.publish
    with monkeypatch.context() as patch:
        patch.setattr(Store, "publish", publish)
        result = run_cli("run")
    assert result["code"] == 2 and "Traceback" not in result["err"]
    assert (
        result["err"]
        .splitlines()[-1]
        .startswith(f"textmill: /full/shards: {os.strerror(number)}; ")
    )
    stand_in_stages.clear()
    assert run_cli("run")["code"] == 0
    assert stand_in_stages[0] == "shards"


def test_defect_of_the_system_is_not_explained_away(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(arguments: list[str]) -> int:
        raise OSError(errno.EBADF, "a defect")

    monkeypatch.setattr("flows.cli._dispatch", broken)
    with pytest.raises(OSError, match="a defect"):
        run_cli("run")


def test_reader_of_stdout_that_goes_away_costs_no_traceback(tmp_path: Path) -> None:
    places = [f"store={tmp_path / 'store'}", f"state={tmp_path / 'state'}"]
    command = [sys.executable, "-m", "flows.cli", "plan", "source=sample", *places]
    with subprocess.Popen(
        command,
        cwd=CONF_DIR.parent,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 141 and said == ""


@pytest.mark.parametrize(
    "words",
    [
        ("run", "source.paths=[caf\udce9.jsonl]"),
        ("generate", "caf\udce9"),
        ("explain", "caf\udce9"),
    ],
)
def test_argument_that_is_not_utf8_is_one_line(words: tuple[str, ...], run_cli: RunCli) -> None:
    result = run_cli(*words)
    assert (
        result["code"] == 2
        and "is not UTF-8; write it in UTF-8, or rename the file" in result["err"]
    )
    assert len(result["err"].splitlines()) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_does(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    said = capsys.readouterr().out
    assert (
        said.startswith(f"textmill {command}: {COMMANDS[command].summary}\n")
        and "store=DIR" in said
    )


def test_help_of_a_command_does_nothing_else(
    run_cli: RunCli, stand_in_stages: list[str], tmp_path: Path
) -> None:
    for words in (["gc", "--yes", "-h"], ["refresh", "--help"], ["generate", "Once", "--help"]):
        assert run_cli(*words)["code"] == 0
    assert stand_in_stages == [] and list(tmp_path.iterdir()) == []


def test_help_loads_neither_hydra_nor_rich_nor_numbers() -> None:
    code = (
        "import sys; from flows.cli import main; assert main(['--help']) == 0; print([m for m in"
        " ('hydra', 'omegaconf', 'rich', 'numpy', 'pyarrow', 'prefect', 'torch') if m in"
        " sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_lists_every_flow(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == main(["-h"]) == main(["help"]) == 0
    shown = capsys.readouterr().out
    assert all(
        name in shown for name in [*FLOWS, "plan", "up", "down", "env", "ui", "gc", "generate"]
    )


def choices_in_turn() -> list[list[str]]:
    """Every choice of every group: one by one where groups have rules between them, of the others
    one of each side by side."""
    alone: dict[str, list[str]] = {"train": [], "parallel": [], "memory": ["parallel=fsdp"]}
    together = [
        # `this` is a machine that was calibrated.
        [f"{group}={choice}" for choice in choices(group) if choice != "this"]
        for group in groups()
        if group not in alone
    ]
    # The planner chooses for some device, toxicity is told by a model of the user, preferences are
    # measured from one, and what rests in few bits is for products in few bits.
    model = "scores.classifiers.toxicity.model_path=m"
    more = {
        "parallel=auto": ["hardware=h100"],
        "scores=toxicity": [model],
        "adapter=qlora": ["train.dtype=bf16"],
        "train=dpo": ["train.init_from=base"],
    }
    turns = [
        [
            "train.seq_len=256",
            *(word for choice in turn if choice for word in [choice, *more.get(choice, [])]),
        ]
        for turn in zip_longest(*together)
    ]
    return turns + [
        [f"{group}={choice}", *extra, *more.get(f"{group}={choice}", [])]
        for group, extra in alone.items()
        for choice in choices(group)
    ]


@pytest.mark.parametrize("overrides", choices_in_turn(), ids=" ".join)
def test_every_choice_of_every_group_composes(overrides: list[str]) -> None:
    compose(overrides)


def test_settings_that_yaml_leaves_out_can_be_overridden(tmp_path: Path) -> None:
    shutil.copytree(CONF_DIR, tmp_path / "conf")
    (tmp_path / "conf" / "tokenizer" / "mine.yaml").write_text("kind: bpe\n")
    assert compose(["tokenizer=mine", "tokenizer.seed=5"], tmp_path / "conf").tokenizer.seed == 5


def test_own_data_gets_nothing_of_the_embedded_corpus() -> None:
    own = compose(["source.paths=[x.jsonl]"]).source
    assert (own.name, own.language_column, own.source_column, own.exclude) == (
        "files",
        "language",
        None,
        {},
    )
    assert compose(["run=demo"]).source.name == "sample"


def test_overlay_wins_over_groups_and_the_command_line_over_both() -> None:
    demo = compose(["run=demo"])
    assert demo != compose()
    assert compose(["run=demo", "train.num_steps=3"]).train.num_steps == 3


def test_file_of_a_group_with_a_typo_is_named(tmp_path: Path) -> None:
    shutil.copytree(CONF_DIR, tmp_path / "conf")
    (tmp_path / "conf" / "tokenizer" / "mine.yaml").write_text("kind: bpe\nvocab_sise: 512\n")
    with pytest.raises(
        ConfigError,
        match=r"tokenizer\.vocab_sise is not a known setting; did you mean vocab_size\?",
    ):
        compose(["tokenizer=mine"], tmp_path / "conf")
    (tmp_path / "conf" / "tokenizer" / "torn.yaml").write_text("kind: [bpe\n")
    with pytest.raises(ConfigError) as caught:
        compose(["tokenizer=torn"], tmp_path / "conf")
    assert "\n" not in str(caught.value)


def test_sweep_points_are_all_combinations_in_order() -> None:
    assert listed_points(dimensions(["optim.lr=1e-3,3e-3", "tokenizer=bpe,unigram", "seed=1"])) == [
        ["optim.lr=0.001", "tokenizer=bpe", "seed=1"],
        ["optim.lr=0.001", "tokenizer=unigram", "seed=1"],
        ["optim.lr=0.003", "tokenizer=bpe", "seed=1"],
        ["optim.lr=0.003", "tokenizer=unigram", "seed=1"],
    ]


def test_a_value_is_appended_to_what_a_list_holds() -> None:
    more = compose(["source=sample", "source.paths+=[a,'b c']", "source.paths+=d"]).source.paths
    assert more == (*compose(["source=sample"]).source.paths, "a", "b c", "d")
    assert compose(["force+=[train]"]).force == ("train",), "no file sets it"
    assert compose(["++source.paths=[a]", "source.paths+=[b]"]).source.paths == ("a", "b")
    points = listed_points(dimensions(["source.paths+=[a],[b]", "source.paths+=[c]"]))
    assert points == [[f"source.paths+=[{one}]", "source.paths+=[c]"] for one in "ab"]


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("optim.lr+=3", "optim.lr is not a list"),
        ("source+=a", "source is not a list"),
        ("source.pths+=[a]", "did you mean paths?"),
        ("source.paths+=a,b", "add -m"),
        ("source.paths+=[a", "is not an override"),
    ],
)
def test_what_cannot_be_appended_is_refused(override: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(hint)):
        compose([override])


def test_compose_from_many_threads_is_safe() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        seeds = list(
            pool.map(lambda seed: compose([f"tokenizer.seed={seed}"]).tokenizer.seed, range(6))
        )
    assert seeds == list(range(6))


def test_sources_are_named_on_the_command_line() -> None:
    web, wiki = (
        "source.sources.web.paths=[crawl/*.warc.gz]",
        "source.sources.wiki={paths: [wiki/], text_column: body}",
    )
    config = compose([web, wiki, "source.sources.web.text_kind=html"]).source
    assert {
        name: (one.paths, one.text_column, one.text_kind) for name, one in config.inputs.items()
    } == {
        "web": (("crawl/*.warc.gz",), "text", "html"),
        "wiki": (("wiki/",), "body", "plain"),
    }
    assert compose(["store=/elsewhere", web]).source.cache == Path("/elsewhere/.remote")
    with pytest.raises(ConfigError, match="exclude each other"):
        compose([web, "source.paths=[a]"])


def test_a_reference_may_name_any_field() -> None:
    config = compose(["documents.seed=${tokenizer.seed}", "tokenizer.seed=5"])
    assert config.documents.seed == 5
    assert compose(["train.seed=${optim.guard.max_skips}"]).train.seed == 5
