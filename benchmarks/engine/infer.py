"""Times the answers of the engine on random weights, beside another engine's in the same call.

`python -m benchmarks.engine.infer [--mode decode] [--shape 1.1b] [--weights bf16] [--batch 1] …`

| mode | measures |
|---|---|
| decode | `--batch` prompts of `--prompt` tokens, `--new` new ones each; tokens after the first |
| load | `--requests` at once, lengths drawn from `--prompts` and `--answers`; tokens over time |
| prefix | time to the first token behind 1,000 tokens that the cache holds, and that it lacks |
| parts | passes of several sizes: the host's time, and until the device is done |
| start | a first token of a new process, and what an answer compiles and captures |
| http | `load` over a real server on loopback, against an engine with the same settings |

With `--peer` both are run in turn, `--rounds` times, each in a process of its own. A peer is
`transformers`, `generate_batch` (its continuous batching) or `ctranslate2`, which get the same
lengths (benchmarks.engine.infer_peers), or a command or script that prints JSON lines with `tok_s`;
where lines name a `model` and a `batch`, those of this shape and batch count, and of several the
fastest. Decoding on a CPU is counted in seconds of processor time, as other work runs beside.

Before it is timed, what is computed is checked (benchmarks.engine.infer_models); where it is wrong,
speeds are withheld and the exit code is 1. The last line is JSON: {"tok_s", "peer_tok_s", "ratio",
"mbu", "ttft_ms", "card", …}. mbu: weights and keys that a step must read, per second, as a share of
what reading or copying a large array reaches here. start_s: seconds from making the engine until
its first tokens after the first, with all that is compiled or captured for them, of each round: the
first is cold where nothing of it is in the cache folder of compiled kernels. choosing_frac: on a
CPU, the largest share of a step that any kind of sampling takes to choose its tokens. Of `prefix`
the ratio is that of both times, of `http` that to the engine.

With `--quality DIR`, a trained model as a Hugging Face folder, the last line also has its bits per
byte with weights of this format, and by what share rounding raises them
(`benchmarks.engine.infer_quality`).

Without a GPU the case is one that a CPU answers in a minute, and ctranslate2 its peer where it is
installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import statistics
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from benchmarks.engine.infer_measures import MEASURES
from benchmarks.engine.infer_models import SHAPES, WEIGHTS
from benchmarks.engine.infer_quality import more_bits
from benchmarks.engine.train import Row, json_rows
from llm_core.printing import show

NUMBERS = ("peak_gib", "behind", "behind_allowed", "difference", "choosing_frac")
OWN_PEERS = ("transformers", "generate_batch", "ctranslate2")


@dataclass(frozen=True)
class Case:
    """What is answered."""

    mode: str = "decode"
    shape: str = "1.1b"
    weights: str = "bf16"
    batch: int = 1
    prompt: int = 512
    new: int = 256
    requests: int = 64
    prompts: str = "32-1024"
    answers: str = "16-256"
    threads: int = 1
    repeats: int = 3

    @property
    def ranges(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Least and most tokens of prompts and of answers."""
        (a, b), (c, d) = (map(int, each.split("-")) for each in (self.prompts, self.answers))
        return (a, b), (c, d)

    @property
    def arguments(self) -> list[str]:
        return [f"--{field.name}={getattr(self, field.name)}" for field in fields(self)]


def usual_case() -> Case:
    """What a GPU is measured by, and what a CPU."""
    if torch.cuda.is_available():
        return Case()
    return Case(shape="40m", weights="float32", prompt=128, new=48)


def usual_peer(case: Case) -> str | None:
    """The peer of a case that names none: None on a GPU, where each is a choice."""
    serves = case.mode == "decode" and case.weights in ("float32", "int8")
    is_there = importlib.util.find_spec("ctranslate2") is not None
    return "ctranslate2" if serves and is_there and not torch.cuda.is_available() else None


def make_parser(text: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choices = {"mode": tuple(MEASURES), "shape": tuple(SHAPES), "weights": WEIGHTS}
    for name, usual in vars(usual_case()).items():
        parser.add_argument(f"--{name}", type=type(usual), default=usual, choices=choices.get(name))
    return parser


def case_of(arguments: argparse.Namespace) -> Case:
    return Case(**{field.name: getattr(arguments, field.name) for field in fields(Case)})


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--peer", help="another engine: a name, a command or a script")
    parser.add_argument("--rounds", type=int, default=2, help="how often each is run, in turn")
    parser.add_argument("--quality", type=Path, metavar="DIR", help="a trained model")
    parser.add_argument("--only", choices=("own",), help="this engine, in this process")
    arguments = parser.parse_args()
    case = case_of(arguments)
    if arguments.only:
        show(json.dumps(MEASURES[case.mode](case)), flush=True)
        return
    own: list[Row] = []
    peer: list[Row] = []
    named = arguments.peer or usual_peer(case)
    command = [sys.executable, "-m", "benchmarks.engine.infer", *case.arguments, "--only", "own"]
    for _ in range(arguments.rounds):
        own.append(json_rows(command)[-1])
        show(json.dumps(own[-1]), flush=True)
        if named:
            rows = json_rows(peer_command(named, case))
            peer.append(fastest(rows, case))
            show(json.dumps(peer[-1]), flush=True)
    summary = summarise(own, peer)
    if arguments.quality:
        summary |= more_bits(arguments.quality, case.weights)
    show(json.dumps(summary))
    sys.exit(not summary["correct"])


def peer_command(peer: str, case: Case) -> list[str]:
    words = shlex.split(peer)
    if words[0] in OWN_PEERS:
        return [sys.executable, "-m", "benchmarks.engine.infer_peers", *words, *case.arguments]
    return [sys.executable, *words] if words[0].endswith(".py") else words


def fastest(rows: list[Row], case: Case) -> Row:
    """The row of a peer that is about this case. Raises RuntimeError where there is none."""
    fitting = [
        row
        for row in rows
        if isinstance(row.get("tok_s"), int | float)
        and str(row.get("model", case.shape)).lower() == case.shape
        and row.get("batch", case.batch) == case.batch
    ]
    if not fitting:
        raise RuntimeError(
            f"the peer printed no tok_s of {case.shape} at batch {case.batch}: {rows[-3:]}"
        )
    return max(fitting, key=lambda row: row["tok_s"])


def summarise(own: list[Row], peer: list[Row]) -> Row:
    """Medians over the rounds; without speeds where any of ours is withheld."""
    correct = all(row["correct"] for row in own)

    def median(rows: list[Row], name: str) -> float | None:
        values = [row[name] for row in rows if row.get(name) is not None]
        return statistics.median(values) if values else None

    shown = {name: median(own, name) if correct else None for name in ("tok_s", "mbu", "ttft_ms")}
    against = {"peer_tok_s": median(peer or own, "tok_s" if peer else "peer_tok_s")}
    ratio = median(own, "ratio") if correct else None
    if shown["tok_s"] and against["peer_tok_s"]:
        ratio = round(shown["tok_s"] / against["peer_tok_s"], 4)
    least_to_most = [[min(found), max(found)] if found else None for found in _speeds(own, peer)]
    return (
        {"tok_s": shown["tok_s"]}
        | against
        | {"ratio": ratio, "mbu": shown["mbu"], "ttft_ms": shown["ttft_ms"]}
        | {
            "card": own[0]["card"],
            "correct": correct,
            "peer": peer[0].get("name") if peer else None,
        }
        | {"peer_ttft_ms": median(peer or own, "ttft_ms" if peer else "peer_ttft_ms")}
        | {"tok_s_range": least_to_most[0] if correct else None}
        | {"peer_tok_s_range": least_to_most[1]}
        | {"start_s": [row.get("start_s") for row in own]}
        | {name: median(own, name) for name in NUMBERS}
    )


def _speeds(*sides: list[Row]) -> list[list[float]]:
    return [[row["tok_s"] for row in rows if row.get("tok_s") is not None] for rows in sides]


if __name__ == "__main__":
    main()
