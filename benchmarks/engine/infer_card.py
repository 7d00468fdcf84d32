"""Runs the cases of the engine that need a GPU, one after another, within one call.

`python -m benchmarks.engine.infer_card [CASE…] [--seconds 560]` prints the JSON line
of every process of `benchmarks.engine.infer`, and after each case a line {"case", "elapsed_s",
"tok_s", "peer_tok_s", "ratio", …}. A case that fails is a line {"case", "failed"}; the next one is
run. Cases that no longer fit the time are named and left out.

| case | ratio | bar |
|---|---|---|
| prefix, prefix-8b | first token behind 1,000 known tokens, cold against warm | 5 |
| load-padded | tokens/s of 64 requests, against `generate` of transformers | 3 |
| load-batch | the same, against its `generate_batch` | 1.5 |
| http | of the same load over HTTP, against the engine | 0.9 |
| start-8b | first token of two processes: without compiled kernels, then with them | |
| decode-16 | decoding of 16 rows, no peer | |
| parts | where a warm pass and a step of 64 rows spend their time | |
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from llm_core.printing import show

MODULE = (sys.executable, "-m", "benchmarks.engine.infer")
CASES: dict[str, tuple[tuple[str, ...], int]] = {
    "prefix": (("--mode=prefix", "--rounds=1", "--repeats=8"), 60),
    "parts": (("--mode=parts", "--only=own"), 60),
    "load-batch": (("--mode=load", "--rounds=1", "--peer=generate_batch"), 150),
    "load-padded": (("--mode=load", "--rounds=1", "--peer=transformers"), 150),
    "http": (("--mode=http", "--rounds=1"), 90),
    "start-8b": (("--mode=start", "--shape=8b", "--only=own", "--new=32"), 120),
    "prefix-8b": (("--mode=prefix", "--shape=8b", "--rounds=1"), 90),
    "decode-16": (("--batch=16", "--rounds=1"), 60),
}
"""Arguments of a case and seconds that it may take."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], metavar="CASE")
    parser.add_argument("--seconds", type=float, default=560.0, help="for all cases together")
    parser.add_argument("--shape", help="another model than the cases name")
    arguments = parser.parse_args()
    ends_at = time.monotonic() + arguments.seconds
    for case in arguments.cases or CASES:
        left_s = ends_at - time.monotonic()
        if left_s < CASES[case][1] / 2:
            show(json.dumps({"case": case, "failed": f"left out: {left_s:.0f} s are left"}))
            continue
        run_case(case, left_s, [f"--shape={arguments.shape}"] if arguments.shape else [])


def run_case(case: str, left_s: float, more: Sequence[str]) -> None:
    words = CASES[case][0]
    if case.startswith("start"):
        with tempfile.TemporaryDirectory() as name:
            folders = {
                "TRITON_CACHE_DIR": "triton",
                "CUDA_CACHE_PATH": "cuda",
                "XDG_CACHE_HOME": "user",
                "TORCHINDUCTOR_CACHE_DIR": "inductor",
            }
            places = {key: str(Path(name) / folder) for key, folder in folders.items()}
            for which in ("cold", "cached"):
                began = time.monotonic()
                command = [*MODULE, *words, *more]
                run_process(f"{case} {which}", command, left_s, {**os.environ, **places})
                left_s -= time.monotonic() - began
    else:
        run_process(case, [*MODULE, *words, *more], left_s, dict(os.environ))


def run_process(case: str, command: Sequence[str], left_s: float, env: dict[str, str]) -> None:
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=left_s, env=env,
        )  # fmt: skip
        lines, code = done.stdout.splitlines(), done.returncode
    except subprocess.TimeoutExpired as error:
        lines, code = (error.stdout or b"").decode(errors="replace").splitlines(), None
    rows = [line for line in lines if line.startswith("{")]
    for row in rows[:-1]:
        show(row, flush=True)
    last = json.loads(rows[-1]) if rows else {}
    about: dict[str, object] = {
        "case": case,
        "elapsed_s": round(time.monotonic() - began, 1),
    }
    if code != 0:
        about["failed"] = f"ended with {code}: " + " | ".join(lines[-12:])[-3000:]
    show(json.dumps(about | last), flush=True)


if __name__ == "__main__":
    main()
