"""Gives one file or folder of others to the setting that a user would name it in, in a process of
its own.

`Worker` runs `python -m tests.support.hostile_settings FOLDER` and asks it about one input after
another. An input that ends the process, or takes more processor time or address space than is
allowed, costs that process alone: the next input gets a new one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import TracebackType

from flows.exit_codes import exit_code
from tasks.runtime.artifact import Artifact

ROOT = Path(__file__).resolve().parents[2]
CPU_S = 10
MEMORY_BYTES = 1 << 30
"""Of address space, beyond what the process has before it sees the input."""
PAGE_S = 2.0
"""For one page, of its own process; less than the default, so that tests are quick."""
WALL_S = 120
"""Until a process that does nothing is given up; a busy machine stops no sound one before."""


class Worker:
    """A process for hostile inputs, started when it is needed; leaving its context ends it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._process = folder, None

    _process: subprocess.Popen[bytes] | None

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def outcome(self, setting: str, path: Path) -> str:
        """What became of an input: `read …`, `quarantined: …`, `refused: …`, or how the process
        ended."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps([setting, str(path)]).encode() + b"\n")
        process.stdin.flush()
        is_ready = select.select([process.stdout], [], [], WALL_S)[0]
        if is_ready and (answer := process.stdout.readline()):
            return str(json.loads(answer))
        if not is_ready:
            process.kill()
        self._process, code = None, process.wait()
        process.communicate()
        return (
            f"the process ended: {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
        )

    def _start(self) -> subprocess.Popen[bytes]:
        own = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        program = [sys.executable, "-m", "tests.support.hostile_settings"]
        return subprocess.Popen(
            [*program, tempfile.mkdtemp(dir=self._folder)],
            cwd=ROOT,
            env=os.environ | own,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )


class Settings:
    """The settings, with the small sound artifacts that they need beside the input."""

    def __init__(self, folder: Path) -> None:
        from tests.support.data.make_artifacts import ingest_files, write_jsonl

        self._folder, self._count = folder, 0
        self._sound = write_jsonl(folder / "sound.jsonl", [{"text": "a sound record"}])
        self._ingested = ingest_files(folder, "ingested", [self._sound])
        self._warm: set[str] = {"wrong"}

    def warm(self, name: str) -> None:
        """Give a setting something sound: what is imported or compiled once counts for no hostile
        input."""
        from tests.support.data.fasttext_models import write_model
        from tests.support.data.make_artifacts import write_jsonl

        if name in self._warm:
            return
        self._warm.add(name)
        if name == "source":
            self.source(write_jsonl(self._folder / "other.jsonl", [{"text": "another record"}]))
        elif name in ("language", "score"):
            for loss in (1, 2, 3):
                file = write_model(self._folder / f"{name}-{loss}.bin", loss=loss)
                self.language(file) if name == "language" else self.score(file, "__label__x")
        elif name == "tokenizer":
            self.tokenizer(self._tokenizer.path)
        elif name == "model":
            self.model(made_model(self._folder / "model"))
        else:
            assert name == "shards" and self._tokenizer.path

    @cached_property
    def _labelled(self) -> Artifact:
        from tasks.language.config import LanguageConfig
        from tasks.language.stage import identify_languages

        return identify_languages(self._ingested, self._out_dir(), LanguageConfig())

    @cached_property
    def _documents(self) -> Artifact:
        from tests.support.data.sample_documents import sample_texts, write_documents

        return write_documents(self._folder / "documents", sample_texts(20, 300))

    @cached_property
    def _tokenizer(self) -> Artifact:
        from tasks.tokenizer.config import TokenizerConfig
        from tasks.tokenizer.stage import train_tokenizer

        return train_tokenizer(self._documents, self._out_dir(), TokenizerConfig(vocab_size=300))

    def _out_dir(self) -> Path:
        self._count += 1
        place = self._folder / f"out-{self._count}"
        place.mkdir()
        return place

    def source(self, path: Path) -> str:
        """source.paths, with a sound file after it."""
        from tasks.ingest.sources import HtmlConfig, SourceConfig
        from tasks.ingest.stage import QUARANTINE_FILE, ingest
        from tests.support.data.make_artifacts import read_documents

        paths = (str(path), str(self._sound))
        made = ingest(
            self._out_dir(), SourceConfig(name="s", paths=paths, html=HtmlConfig(timeout_s=PAGE_S))
        )
        texts = [row["text"] for row in read_documents(made)]
        assert texts.count("a sound record") == 1, "the run goes on"
        lines = made.file(QUARANTINE_FILE).read_text("utf-8").splitlines()
        faults = [json.loads(line)["error"] for line in lines]
        parts = [f"read {len(texts) - 1}"] * (len(texts) > 1) + [
            f"quarantined: {fault}" for fault in faults
        ]
        return "; ".join(parts) or "nothing"

    def language(self, path: Path) -> str:
        """language.model_path."""
        from tasks.language.config import LanguageConfig
        from tasks.language.stage import identify_languages

        config = LanguageConfig(model_path=path)
        config.labels()
        made = identify_languages(self._ingested, self._out_dir(), config)
        return f"read {made.counters['read']}"

    def score(self, path: Path, label: str = "__label__en") -> str:
        """scores.classifiers.NAME.model_path."""
        from tasks.scores.classifier import ClassifierConfig
        from tasks.scores.config import ScoresConfig
        from tasks.scores.stage import score_documents

        config = ScoresConfig({"good": ClassifierConfig(model_path=path, label=label)})
        config.input_files()
        made = score_documents(self._ingested, self._labelled, self._out_dir(), config)
        return f"read {made.counters['read']}"

    def tokenizer(self, path: Path) -> str:
        """tokenizer=import tokenizer.path."""
        from tasks.tokenizer.config import TokenizerConfig
        from tasks.tokenizer.stage import train_tokenizer

        config = TokenizerConfig(kind="import", path=path)
        config.input_files()
        made = train_tokenizer(self._documents, self._out_dir(), config)
        return f"read {made.metrics['vocab_size']}"

    def shards(self, path: Path) -> str:
        """shards=import shards.form=datasets shards.path."""
        from tasks.shards.config import ShardsConfig
        from tasks.shards.stage import write_shards

        config = ShardsConfig(form="datasets", path=path)
        config.input_files()
        made = write_shards(self._documents, self._tokenizer, self._out_dir(), config)
        return f"read {made.counters['read']}"

    def wrong(self, path: Path) -> str:
        """No setting: what none may do, so that a test can tell whether it is seen."""
        if path.name == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif path.name == "spin":
            signal.setitimer(signal.ITIMER_PROF, 0.1)  # not the whole allowance
            while True:
                pass
        elif path.name == "fill":
            bytearray(2 * MEMORY_BYTES)
        return str(1 // 0)

    def model(self, path: Path) -> str:
        """train.init_from, with the settings of a model that the folder asks for; then the weights,
        as training reads them."""
        from llm_core.huggingface.export import load_model, read_config
        from tasks.training.config import TrainStageConfig
        from tests.support.engine.small_runs import OPTIM, TRAIN

        train = dataclasses.replace(TRAIN, init_from=path)
        TrainStageConfig(read_config(path), OPTIM, train).input_files()
        return f"read {sum(weight.numel() for weight in load_model(path).parameters())}"


def made_model(folder: Path) -> Path:
    """A sound folder for train.init_from."""
    import numpy as np
    from safetensors.numpy import save_file

    from tests.fuzz.targets import MODEL_CONFIG

    shapes = {"model.embed_tokens.weight": (64, 16), "model.norm.weight": (16,)}
    layer = "model.layers.0."
    shapes |= {f"{layer}{name}_layernorm.weight": (16,) for name in ("input", "post_attention")}
    shapes |= {f"{layer}self_attn.{name}_proj.weight": (16, 16) for name in "qkvo"}
    shapes |= {f"{layer}mlp.{name}_proj.weight": (32, 16) for name in ("gate", "up")}
    shapes[f"{layer}mlp.down_proj.weight"] = (16, 32)
    folder.mkdir()
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(MODEL_CONFIG), "utf-8")
    return folder


def judge(setting: Callable[[Path], str], path: Path) -> str:
    """What the command line would say. A defect is none of its answers, and is named with its
    type."""
    read: list[str] = []

    def act() -> int:
        read.append(setting(path))
        return 0

    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            code = exit_code(act)
        except BaseException as error:  # noqa: BLE001 - it is the outcome that tests refuse
            return f"raised {type(error).__name__}: {error}"
    if code == 0:
        return read[0]
    line = said.getvalue()
    is_one_line = line.count("\n") == 1 and line.startswith("textmill: ")
    return f"refused: {line.strip()}" if code == 2 and is_one_line else f"exit code {code}: {line}"


def serve(folder: Path) -> None:
    """Answer (setting, path), one JSON line each, on what was stdout; libraries that print get
    stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    settings = Settings(folder)
    for line in sys.stdin:
        name, path = json.loads(line)
        settings.warm(name)
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY_BYTES, resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        outcome = judge(getattr(settings, name), Path(path))
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        answers.write(json.dumps(outcome) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
