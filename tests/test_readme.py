"""Checks that the commands and settings of the README and the guides exist and do what is said."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
from pathlib import Path

import click
import pytest
import yaml

from flows import cli
from flows.commands.command import with_source
from flows.commands.table import COMMANDS as NAMED
from flows.commands.table import FLOWS
from flows.compose import compose
from flows.run import decide
from flows.sweeps.launch import split_hydra
from flows.sweeps.sweep import read_sweep
from llm_core.config import ConfigError
from tasks.runtime.code import ROOT
from tasks.runtime.graph import STAGES
from tests.support.written_commands import (
    SMALL,
    as_written_but_small,
    fenced_commands,
    inline_commands,
    link_sample,
    make_programs,
    words_of,
)

README = (ROOT / "README.md").read_text("utf-8")
GUIDES = [file.read_text("utf-8") for file in sorted((ROOT / "docs/guides").glob("*.md"))]
TUTORIAL = (ROOT / "docs/tutorial.md").read_text("utf-8")
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text("utf-8")
TRAINING = [(ROOT / f"docs/guides/{n}.md").read_text("utf-8") for n in ("training", "several-gpus")]
"""What their settings are set to is held by tests/flows/tracking/test_training_page.py."""
PAGES = "\n".join([README, *GUIDES])
NOT_RUN = re.compile(
    r"^(make|source|textmill serve|textmill (bench )?compare) |[ .]folder=|/crawl|s3://"
)
"""Set-up, a server that stays, and what only the reader has: runs, models, a crawl and a bucket."""
COMMANDS = sorted({*fenced_commands(PAGES), *inline_commands(PAGES), *inline_commands(TUTORIAL)})


def check_textmill(name: str, arguments: list[str]) -> None:
    """Raises ConfigError for a flow, command, switch or override that is not there."""
    assert name in {*FLOWS, *NAMED}, name
    if name in ("plan", "submit", "schedule") and arguments and "=" not in arguments[0]:
        assert arguments.pop(0) in FLOWS
    if name == "generate" and arguments:
        assert " " in arguments.pop(0), "a prompt"
    arguments = arguments[
        {"explain": 1, "export-shards": 2, "exchange-signatures": 2}.get(name, 0) :
    ]
    if name in ("compare", "fit-scaling") or arguments[:1] == ["compare"]:
        # Runs and sweeps have no sign.
        arguments = [argument for argument in arguments if "=" in argument]
    command = cli.textmill.get_command(click.Context(cli.textmill), name)
    assert command is not None
    given = command.make_context(name, arguments).params
    folder = ("folder=",)
    own = {
        "gc": ("keep=",),
        "bench": ("bench.folder=",),
        "plan": ("inference_tokens=", *folder),
        "fit-scaling": ("flops=",),
        "generate": folder,
        "serve": folder,
        "quantize": ("out=", *folder),
        "export": ("out=", "step=", *folder),
    }
    overrides = [word for word in given["words"] if not word.startswith(own.get(name, ()))]
    if name in ("help", "completion"):
        return
    if name == "plan":
        # A record of this machine is on no other.
        overrides = [word for word in overrides if word != "hardware=this"]
        overrides = with_source(overrides)
    if given.get("multirun"):
        read_sweep(name, *split_hydra(overrides))
    else:
        compose(overrides)


def check_deployment(arguments: list[str]) -> None:
    assert arguments[:2] == ["deployment", "run"] and arguments[3] == "-p", arguments
    flow_name, _, deployment_name = arguments[2].partition("/")
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text("utf-8"))["deployments"]
    file, _, function = next(
        d["entrypoint"] for d in deployments if d["name"] == deployment_name
    ).partition(":")
    flow = getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), function)
    assert flow.name == flow_name
    parameter, _, value = arguments[4].partition("=")
    compose(flow.validate_parameters({parameter: json.loads(value)})["overrides"])


def check(command: str) -> None:
    program, *arguments = words_of(command)
    match program:
        case "make":
            targets = re.findall(
                r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE
            )
            assert {word for word in arguments if not re.match("[A-Z_]+=", word)} <= set(targets), (
                command
            )
        case "textmill":
            check_textmill(arguments[0], arguments[1:])
        case "prefect":
            check_deployment(arguments)
        case "source":
            assert arguments == [".venv/bin/activate"]
        case _:
            raise AssertionError(f"{command}: nothing here knows {program}")


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_there(command: str) -> None:
    check(command)


@pytest.mark.parametrize(
    "wrong",
    ["make rnu", "textmill rnu", "prefect deployment run 'pipeline/lokal' -p overrides='[]'"],
)
def test_check_finds_a_command_that_is_not_there(wrong: str) -> None:
    with pytest.raises((AssertionError, StopIteration)):
        check(wrong)


@pytest.mark.parametrize(
    "wrong", ["textmill run run=dmeo", "textmill run -m optm.lr=1,2", "textmill run --dry"]
)
def test_check_finds_an_override_that_is_not_there(wrong: str) -> None:
    with pytest.raises(ConfigError):
        check(wrong)


def test_commands_are_found() -> None:
    programs = [words_of(command)[0] for command in fenced_commands(PAGES)]
    assert {"make", "textmill", "prefect"} <= set(programs)
    assert len(programs) >= 15


def test_stage_table_is_the_graph() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \| [^|]+ \|$", ARCHITECTURE, re.MULTILINE)
    assert [name for name, _ in rows] == list(STAGES)
    groups = [group for _, cell in rows for group in re.findall(r"`(\w+)`", cell)]
    assert all((ROOT / "conf" / group).is_dir() for group in groups)


def test_command_line_page_lists_every_flow_and_command() -> None:
    page = (ROOT / "docs/reference/command-line.md").read_text("utf-8")
    listed = re.findall(r"^\| `([a-z-]+)", page.partition("## Overrides")[0], re.MULTILINE)
    assert sorted(listed) == sorted([*FLOWS, *NAMED])


def test_file_map_names_what_is_there() -> None:
    listing = re.search(r"## File map\n+```\n(.*?)```", README, re.DOTALL)
    assert listing
    paths = [line.split()[0] for line in listing[1].splitlines()]
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_named_settings_exist() -> None:
    pages = "\n".join(page for page in (README, *GUIDES) if page not in TRAINING)
    settings = re.findall(r"`((?:\w+\.\w+=[\w\[\]]+ ?)+)`", pages)
    assert settings
    for setting in settings:
        compose(["source.paths=[x]", *setting.split()])


@pytest.mark.parametrize(
    ("override", "rerun"),
    [
        ("train.num_steps=400", ["train", "evaluate", "bench", "report"]),
        ("tokenizer=unigram", ["tokenizer", "shards", "train", "evaluate", "bench", "report"]),
        ("orchestrator=none", []),
    ],
)
def test_change_reruns_what_is_said(
    override: str, rerun: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    before, after = (
        decide(compose(["run=demo", f"store={tmp_path}", *more]), "report")[1].steps
        for more in ([], [override])
    )
    assert [
        b.node.stage for a, b in zip(before, after, strict=True) if a.node.key != b.node.key
    ] == rerun


def make_own_data(folder: Path, num_documents: int = 40) -> None:
    """Pages of novels, in JSON lines with a `text` field and nothing else."""
    with (ROOT / "data" / "sample" / "sample.jsonl").open(encoding="utf-8") as stream:
        records = [json.loads(line) for line in stream]
    text = "\n\n".join(r["text"] for r in records if "janeausten" in r["source"])
    paragraphs = [" ".join(p.split()) for p in text.split("\n\n")]
    pages, page = [], ""
    for paragraph in paragraphs:
        page = f"{page}\n\n{paragraph}".strip()
        if len(page) > 1200:
            pages.append(page)
            page = ""
    assert len(pages) >= num_documents
    folder.mkdir(parents=True)
    lines = [json.dumps({"text": page}) for page in pages[:num_documents]]
    (folder / "mine.jsonl").write_text("\n".join(lines) + "\n")


def own_data_command() -> str:
    return next(
        command for command in fenced_commands(README) if command.startswith("textmill run source")
    )


def test_own_data_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_own_data(tmp_path / "my")
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    try:
        code = cli.main(
            [*words_of(own_data_command())[1:], *SMALL, "orchestrator=none", "tracking=off"]
        )
    finally:  # the command sets variables for what it starts
        os.environ.clear()
        os.environ.update(before)
    shown = capsys.readouterr()
    assert code == 0, shown.err
    last = json.loads(shown.out.strip().splitlines()[-1])
    assert list(last["stages"]) == list(STAGES)
    assert last["stages"]["ingest"]["kept"] == 40
    assert Path(last["report"]).exists() and last["val_bpb"] > 0
    model = tmp_path / "data" / "store" / "train" / last["stages"]["train"]["key"] / "model"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        file.name for file in model.iterdir()
    }


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_command_runs(tmp_path: Path) -> None:
    make_own_data(tmp_path / "my")
    (tmp_path / "chats").mkdir()
    (tmp_path / "chats" / "chats.jsonl").symlink_to(ROOT / "data" / "sample" / "chats.jsonl")
    link_sample(tmp_path)
    places = [f"store={tmp_path / 'data' / 'store'}", f"state={tmp_path / 'data' / '.state'}"]
    make_programs(tmp_path / "bin")
    commands = [c for c in fenced_commands(PAGES) if not NOT_RUN.search(c)]
    # The shell is one, since `eval "$(textmill env)"` is for the commands after it.
    script = "\n".join(
        ["set -ex", *(as_written_but_small(command, places) for command in commands)]
    )
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
    }
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        env.pop(name, None)
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        subprocess.run([tmp_path / "bin" / "textmill", "down"], cwd=tmp_path, env=env, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    runs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"run_id"')]
    assert len(runs) >= 5
    assert any(run["stages"]["train"]["cached"] for run in runs if "train" in run["stages"])
