"""Changes a run's config on disk."""

import json
from pathlib import Path


def change_config(folder: Path, **values: object) -> None:
    found = json.loads((folder / "config.json").read_text("utf-8"))
    for name, value in values.items():
        group, _, key = name.rpartition("__")
        (found[group] if group else found)[key] = value
    (folder / "config.json").write_text(json.dumps(found), "utf-8")
