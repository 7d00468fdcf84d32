"""Documents with scores of known values."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tasks.corpus.documentset import read_table, write_table
from tasks.corpus.score_labels import LABELS_FOLDER
from tasks.language.stage import LANGUAGE_SCHEMA
from tasks.runtime.artifact import Artifact
from tests.support.data.language_texts import ENGLISH, documents_artifact
from tests.support.data.make_artifacts import empty_dir

LANGUAGES = ["en", "de"]
NUM = 40


def scored(
    folder: Path, values: list[float], best: str = "high", by_language: bool = False, parts: int = 2
) -> list[Artifact]:
    """Ingest, language and scores of documents with these values of `edu`; languages take turns."""
    size = len(values) // parts
    ingest = documents_artifact(
        folder / "ingest",
        [[f"{ENGLISH} {i}" for i in range(p * size, (p + 1) * size)] for p in range(parts)],
    )
    language, scores = (Artifact(empty_dir(folder / name), name) for name in ("language", "scores"))
    (scores.path / LABELS_FOLDER).mkdir()
    for part, file in enumerate(ingest.files("documents/*.parquet")):
        rows = range(part * size, (part + 1) * size)
        ids = read_table(file, ["id"])["id"]
        labels = [LANGUAGES[i % 2] for i in rows]
        write_table(
            pa.table([ids, labels, pa.array([1.0] * size, pa.float32())], schema=LANGUAGE_SCHEMA),
            language.path / file.name,
        )
        edu = pa.array([values[i] for i in rows], pa.float32(), from_pandas=True)
        write_table(pa.table({"id": ids, "edu": edu}), scores.path / file.name)
        about = {
            "language": labels,
            "source": ["test"] * size,
            "register": ["prose"] * size,
            "bytes": [100] * size,
        }
        write_table(pa.table(about), scores.path / LABELS_FOLDER / file.name)
    about = {"edu": {"best": best, "cut_by_language": by_language}}
    return [ingest, language, Artifact(scores.path, "scores", metrics={"scores": about})]
