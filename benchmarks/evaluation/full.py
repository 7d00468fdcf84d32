"""Scores a model on every suite of `suites=full`, and holds choices against lm-eval.

`python -m benchmarks.evaluation.full FOLDER` or `make eval-full MODEL=DIR`; the records are those
of `make eval-data`. FOLDER is a Hugging Face folder with its tokenizer. `--items N` scores the
first N items of each suite. Rows and figures are kept in `--out DIR`. Numbers are float64 without
a GPU, unless `--dtype` says otherwise.

Where lm-eval is installed (`textmill[lm-eval]`), choices go through it too, our model behind it
(`evaluate.backend=lm_eval`). `worst_difference` is the largest difference of a log-likelihood, in
nats; `agrees_with_lm_eval` is false where it is more than rounding, or where the credit of an item
differs without a known reason. Both are null where nothing was compared. A suite with an answer
that no window holds is named and left out. Time is that of scoring, without lm-eval. The last line
is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.evaluation.published_sets import SUITES
from llm_core.config import ConfigError
from llm_core.device import choose_device
from llm_core.printing import note, show
from tasks.evaluation.beside import beside_folder
from tasks.evaluation.config import EvaluateConfig, EvaluateStageConfig, SuitesConfig
from tasks.evaluation.suite_parts import OWN, Judged, score_suites, whole_loader
from tasks.evaluation.suites import suite_folders
from tasks.runtime.artifact import write_json
from tasks.runtime.parts import serial

SMALL = SUITES.with_name("suites")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--suites", type=Path, action="append", help="folders of suites")
    parser.add_argument("--items", type=int, help="of each suite; all by default")
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float64"])
    parser.add_argument("--out", type=Path, help="where rows are kept")
    given = parser.parse_args(arguments)
    dtype: Any = given.dtype or ("float64" if choose_device("auto").type == "cpu" else "auto")
    scoring = EvaluateConfig(batch_tokens=given.batch_tokens, dtype=dtype)
    judged = replace(beside_folder(given.folder, scoring), name=OWN)
    with tempfile.TemporaryDirectory() as folder:
        out = given.out or Path(folder)
        folders = suite_folders(tuple(given.suites or (SMALL, SUITES)))
        found = score_all(judged, folders, given.items, scoring, out)
    show(json.dumps(found))
    return 0 if found["agrees_with_lm_eval"] in (True, None) else 1


def score_all(
    judged: Judged,
    folders: Mapping[str, Path],
    max_items: int | None,
    scoring: EvaluateConfig,
    out: Path,
) -> dict[str, Any]:
    """Score suite by suite, so that one that does not fit the model costs no other.

    Raises ConfigError where the records of a suite are missing or damaged.
    """
    SuitesConfig(tuple(folders.values())).load()
    items, elapsed_s, figures = 0, 0.0, {}
    agreements: list[dict[str, Any]] = []
    has_harness = find_spec("lm_eval") is not None
    for name, folder in sorted(folders.items()):
        config = EvaluateStageConfig(scoring, suites=SuitesConfig((folder,), max_items))
        place = out / name
        place.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        try:
            suite = score_suites([judged], {}, config, place, serial)[OWN][name]
        except ConfigError as error:
            # Records that are missing or damaged are an error before any suite is scored.
            note(f"left out: {error}")
            continue
        elapsed_s += time.perf_counter() - started
        items += suite["items"]
        figures[name] = suite
        shown = ", ".join(
            f"{metric} {found['value']:.4f}" for metric, found in suite["metrics"].items()
        )
        show(f"{name:<20}{suite['items']:>7,} items  {shown}")
        if has_harness:
            from tasks.evaluation.harness import add_harness

            add_harness({name: suite}, judged, config, place, whole_loader(scoring))
            agreements += [suite["lm_eval"]] if "lm_eval" in suite else []
    write_json(out / "suites.json", figures)
    return {
        "suites": len(figures),
        "items": items,
        "items_per_s": round(items / elapsed_s, 2) if items else None,
        "agrees_with_lm_eval": all(a["agrees"] for a in agreements) if agreements else None,
        "worst_difference": max((a["worst_nats"] for a in agreements), default=None),
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        note(f"eval-full: {error}")
        sys.exit(2)
