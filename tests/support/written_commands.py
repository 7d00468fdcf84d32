"""Finds the commands that pages show, and makes them small enough to be run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flows.commands.table import FLOWS
from tasks.runtime.code import ROOT

MODEL = (
    "model.dim=32 model.num_layers=1 model.num_heads=2 model.num_kv_heads=2 model.ffn_dim=64"
    " model.max_seq_len=128"
)
TRAIN = (
    "train.num_steps=4 train.seq_len=32 train.validate_every=2 train.checkpoint_every=2"
    " train.max_val_sequences=4"
)
MEASURE = (
    "evaluate.max_documents=4 evaluate.max_document_tokens=256 generate.max_new_tokens=4"
    " bench.repeats=3 bench.batches=[1] bench.prompt_tokens=[8] bench.new_tokens=[4]"
    " bench.check_tokens=4 bench.weights=[model] bench.concurrencies=[]"
)
SMALL = [
    *MODEL.split(),
    *TRAIN.split(),
    *MEASURE.split(),
    "tokenizer.vocab_size=512",
    "num_workers=1",
    "runner=thread",
]


def fenced_commands(page: str) -> list[str]:
    """Every command of every bash block, without its comment."""
    blocks = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [
        re.sub(r"\s+#.*", "", line).strip()
        for block in blocks
        for line in block.replace("\\\n", " ").splitlines()
        if line.strip()
    ]


def inline_commands(page: str) -> list[str]:
    return re.findall(r"`((?:textmill|make) [^`]+)`", page)


def words_of(command: str) -> list[str]:
    """The words of a command; of `eval "$(command)"` those within."""
    inner = re.fullmatch(r'eval "\$\((.*)\)"', command)
    return shlex.split(inner[1] if inner else command)


def as_written_but_small(command: str, places: list[str]) -> str:
    """The same command with a training of seconds; everything else as the page has it."""
    words = words_of(command)
    chooses = "tokenizer=unigram" in words or any("vocab_size=" in word for word in words)
    small = [w for w in SMALL if not (chooses and w.startswith("tokenizer."))]
    if words[0] == "prefect":
        parameter, _, value = words[-1].partition("=")
        words[-1] = f"{parameter}={json.dumps([*json.loads(value), *small, *places])}"
        return shlex.join([*words, "--watch"])
    if words[0] == "textmill" and words[1] in {
        *FLOWS,
        "plan",
        "generate",
        "export",
        "export-shards",
        "quantize",
        "submit",
    }:
        words = ["parallel.num_processes=2" if "num_processes=" in w else w for w in words]
        return shlex.join([*words, *small])
    return command


def make_programs(folder: Path) -> None:
    """`textmill` and `prefect` of this environment in a folder for the path of a shell."""
    folder.mkdir()
    for program, module in (("textmill", "flows.cli"), ("prefect", "prefect")):
        wrapper = folder / program
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        wrapper.chmod(0o755)


def link_sample(folder: Path) -> None:
    """The embedded corpus where a clone has it."""
    (folder / "data").mkdir()
    (folder / "data" / "sample").symlink_to(ROOT / "data" / "sample")


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


def run_in_a_shell(commands: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Commands of a page one after another, in a folder with the embedded corpus and the programs;
    the first that fails ends it."""
    link_sample(folder)
    make_programs(folder / "bin")
    return subprocess.run(
        ["bash", "-c", "\n".join(["set -e", *commands])],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
