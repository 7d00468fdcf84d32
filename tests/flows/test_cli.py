"""What the command line says to mistakes: one line that names value, rule and way out, and exit
code 2."""

from __future__ import annotations

import errno
import os
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
from flows.launch import sweep_points
from llm_core.config import ConfigError
from tasks.runtime.artifact import Artifact
from tasks.runtime.store import Node
from tests.flows.conftest import RunCli

MISTAKES = {
    "typo": (["run", "optm.lr=1"], ["optm", "did you mean optim?"]),
    "typo in a group": (
        ["run", "tokenizer.vocb_size=512"],
        ["tokenizer.vocb_size", "did you mean vocab_size?"],
    ),
    "added typo": (["run", "+tokenizer.typo=1"], ["tokenizer.typo", "is not a known setting"]),
    "forced typo": (["run", "++typo=1"], ["typo is not a known setting"]),
    "wrong type": (
        ["run", "tokenizer.vocab_size=many"],
        ["tokenizer.vocab_size ('many')", "a whole number"],
    ),
    "broken rule": (["run", "dedup.num_bands=13"], ["num_bands (13)", "try"]),
    "rule between groups": (
        ["run", "train.seq_len=4096", "model=tiny"],
        ["train.seq_len (4096)", "model.max_seq_len"],
    ),
    "no data": (
        ["run", "source=files"],
        ["source.paths is empty", "source.paths='[my/*.jsonl]'", "run=demo"],
    ),
    "missing file": (["run", "source.paths=[no/such.jsonl]"], ["no/such.jsonl"]),
    "bad choice": (
        ["run", "tokenizer=bpee"],
        ["tokenizer (bpee) is not a choice", "did you mean bpe?"],
    ),
    "bad group": (["run", "tokeniser=bpe"], ["tokeniser", "did you mean tokenizer?"]),
    "added choice": (["run", "+tokenizer=unigram"], ["tokenizer=choice"]),
    "bad overlay": (["run", "run=dmeo"], ["run (dmeo)", "did you mean demo?"]),
    "bad stage": (
        ["run", "start=tokeniser"],
        ["start (tokeniser) is not a stage", "did you mean tokenizer?"],
    ),
    "bad forced stage": (["run", "force=[trian]"], ["force (trian)", "did you mean train?"]),
    "exclusive controls": (["run", "start=train", "only=bench"], ["exclude each other"]),
    "bad syntax": (["run", "a=b=c"], ["'a=b=c' is not an override", "key=value"]),
    "no equals sign": (["run", "tokenizer"], ["'tokenizer' is not an override"]),
    "sweep without -m": (["run", "optim.lr=1e-3,3e-3"], ["add -m"]),
    "bad point of a sweep": (["run", "-m", "tokenizer=bpe,nope"], ["tokenizer (nope)"]),
    "removed group": (["run", "~tokenizer"], ["tokenizer has no value"]),
    "unknown option": (["run", "--dry"], ["--dry is not an option"]),
    "unknown flow": (["rnu"], ["rnu is not a flow or command", "did you mean run?"]),
    "unknown flow of a plan": (["plan", "trian"], ["trian is not a flow", "did you mean train?"]),
    "no workers": (["run", "num_workers=0"], ["num_workers (0)"]),
    "bad orchestrator": (
        ["run", "orchestrator=airflow"],
        ["orchestrator (airflow) is not a choice"],
    ),
    "bad tracking uri": (["run", "tracking.uri=somewhere"], ["tracking", "somewhere", "sqlite:"]),
    "prompt missing": (["generate"], ["needs a prompt"]),
    "prompt forgotten": (
        ["generate", "run=demo"],
        ["needs a prompt", "'run=demo' looks like a setting", "such a prompt goes after --"],
    ),
    "prompt like a switch": (
        ["generate", "-5 is"],
        ["needs a prompt", "'-5 is' looks like a setting", "such a prompt goes after --"],
    ),
    "prompt after overrides": (["generate", "Once", "upon"], ["'upon' is not an override"]),
    "export to nowhere": (["export-shards", "megatron"], ["needs a form and a folder"]),
    "export of nothing": (
        ["export-shards", "megatron", "out"],
        ["no shards are made", "textmill refresh"],
    ),
    "import of nothing": (
        ["refresh", "tokenizer=import"],
        ["tokenizer.path (null)", "tokenizer.path=FILE"],
    ),
    "shards of nothing": (["refresh", "shards=import"], ["shards.path (null)", "shards.path=DIR"]),
    "nothing trained": (["generate", "Once"], ["no model is trained", "textmill train"]),
    "infinite number": (["run", "optim.lr=inf"], ["optim.lr (inf)", "a number, and finite"]),
    "no number": (
        ["run", "optim.weight_decay=nan"],
        ["optim.weight_decay (nan)", "a number, and finite"],
    ),
    "no number in a mapping": (
        ["run", "quality.thresholds={TOO_FEW_WORDS:nan}"],
        ["thresholds.TOO_FEW_WORDS (nan)"],
    ),
    "number beyond 64 bits": (
        ["run", "train.seed=99999999999999999999"],
        ["train.seed", "at most 64 bits"],
    ),
    "float beyond 64 bits": (
        ["run", "train.num_steps=1e30"],
        ["train.num_steps", "at most 64 bits"],
    ),
    "unbalanced bracket": (["run", "source.paths=[a"], ["'source.paths=[a' is not an override"]),
    "heads": (
        ["run", "model.num_heads=4", "model.num_kv_heads=3"],
        ["num_kv_heads (3)", "[1, 2, 4]"],
    ),
    "everything validation": (
        ["run", "documents.validation_frac=1"],
        ["validation_frac (1.0)", "0.05"],
    ),
    "unknown launcher": (["run", "hydra/launcher=joblib"], ["hydra/launcher (joblib)"]),
    "bad keep": (["gc", "keep=all"], ["keep (all)"]),
    "unknown measure": (
        ["plan", "dedup.survivor=[quality,id]", "dedup.quality_column=num_wrds"],
        ["dedup.quality_column (num_wrds)", "did you mean num_words"],
    ),
    "unknown source": (
        [
            "plan",
            "source=files",
            "source.sources.wiki.paths=[a]",
            "documents.mixture.source_frac={wkii: 0.5}",
        ],
        ["source_frac names wkii, which is not a source", "did you mean wiki"],
    ),
    "unknown language": (
        ["plan", "documents.mixture.language_frac={eng: 0.5}"],
        ["language_frac names eng", "the label is en"],
    ),
    "suite that is not there": (
        ["plan", "contamination.suites.x.path=no.jsonl"],
        ["contamination.suites.x.path (no.jsonl)"],
    ),
    "suite that is a folder": (
        ["plan", "contamination.suites.x.path=/tmp"],
        ["contamination.suites.x.path (/tmp) is not a file"],
    ),
    "unknown column": (
        ["plan", "scores.classifiers.x.positives='kind = 1'"],
        ["scores.classifiers.x.positives", "kind"],
    ),
    "half a condition": (
        ["plan", "scores.perplexities.x.reference='true or'"],
        ["scores.perplexities.x.reference", "true or"],
    ),
    "public suffix": (
        ["plan", "quality.urls.domains=[co.uk]"],
        ["quality.urls.domains", "co.uk", "a public suffix"],
    ),
    "host for a page": (
        ["plan", "quality.urls.allow_urls=[e.org]"],
        ["quality.urls.allow_urls", "a whole host"],
    ),
    "two words for one": (
        ["plan", "quality.urls.keywords=['a b']"],
        ["quality.urls.keywords", "one word"],
    ),
    "list that is not there": (
        ["plan", "quality.keywords.x.files=[no]"],
        ["quality.keywords.x.files (no) is not a file"],
    ),
    "list for a mapping": (
        ["run", "source.exclude=[a]"],
        ["source.exclude=[a]", "give a mapping '{a: b}' for a mapping"],
    ),
    "number that is no digit": (["gc", "keep=²"], ["keep (²)"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_one_line_and_exit_code_two(mistake: str, run_cli: RunCli) -> None:
    arguments, expected = MISTAKES[mistake]
    result = run_cli(*arguments)
    lines = result["err"].strip().splitlines()
    assert result["code"] == 2 and len(lines) == 1, result["err"]
    assert lines[0].startswith("textmill: ") and "Traceback" not in lines[0]
    for words in expected:
        assert words in lines[0]


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
            and "memory has run out" in result["err"].splitlines()[-1]
            and "Traceback" not in result["err"]
        )


@pytest.mark.parametrize(
    ("gone", "words"), [(False, "is not UTF-8; rename"), (True, "the current directory is gone")]
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
    process = subprocess.Popen(
        command,
        cwd=CONF_DIR.parent,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait() == 141 and said == ""


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


def test_help_lists_every_flow(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(
        name in shown for name in [*FLOWS, "plan", "up", "down", "env", "ui", "gc", "generate"]
    )


def choices_in_turn() -> list[list[str]]:
    """Every choice of every group: one by one where groups have rules between them, of the others
    one of each side by side."""
    alone: dict[str, list[str]] = {"train": [], "parallel": [], "memory": ["parallel=fsdp"]}
    together = [
        [f"{group}={choice}" for choice in choices(group)]
        for group in groups()
        if group not in alone
    ]
    turns = [["train.seq_len=256", *filter(None, turn)] for turn in zip_longest(*together)]
    return turns + [
        [f"{group}={choice}", *extra] for group, extra in alone.items() for choice in choices(group)
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
    assert sweep_points(["optim.lr=1e-3,3e-3", "tokenizer=bpe,unigram", "seed=1"]) == [
        ["optim.lr=0.001", "tokenizer=bpe", "seed=1"],
        ["optim.lr=0.001", "tokenizer=unigram", "seed=1"],
        ["optim.lr=0.003", "tokenizer=bpe", "seed=1"],
        ["optim.lr=0.003", "tokenizer=unigram", "seed=1"],
    ]


def test_compose_from_many_threads_is_safe() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        seeds = list(
            pool.map(lambda seed: compose([f"tokenizer.seed={seed}"]).tokenizer.seed, range(6))
        )
    assert seeds == list(range(6))


def test_completion_and_config_dump_leave_no_files(tmp_path: Path) -> None:
    def textmill(*arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(CONF_DIR.parent), **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert textmill("-sc", "query=bash", COMP_LINE="textmill re").split() == ["refresh", "replay"]
    expected = [f"tokenizer={choice}" for choice in choices("tokenizer")]
    assert textmill("-sc", "query=bash", COMP_LINE="textmill run tokenizer=").split() == expected
    assert "vocab_size: 777" in textmill("run", "--cfg", "job", "tokenizer.vocab_size=777")
    assert list(tmp_path.iterdir()) == []


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
