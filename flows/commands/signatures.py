"""Exchanges min-hash signatures with datasketch: `textmill exchange-signatures export|match FILE`.

`export` writes the signatures of a run that kept its index (`dedup.keep_index=true`) to a Parquet
file. `match` reads such a file, made here or by `write_minhashes` elsewhere, and prints the near
duplicates that the index has of each of its documents, one JSON object a line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from flows.commands.command import command
from flows.compose import compose
from flows.run import decide
from llm_core.config import ConfigError, local_path
from llm_core.printing import show


@command("export|match FILE [OVERRIDES]...")
def exchange_signatures(words: Sequence[str]) -> int:
    """Signatures of a run to datasketch, and of datasketch to a run."""
    from tasks.dedup.datasketch_exchange import export_signatures, match_signatures

    if len(words) < 2 or words[0] not in ("export", "match") or "=" in words[1]:
        raise ConfigError(
            "exchange-signatures needs a direction and a file; write textmill exchange-signatures"
            " export FILE, or match FILE"
        )
    direction, file = words[0], local_path(words[1], "FILE")
    config = compose(words[2:])
    store, plan = decide(config, "dedup")
    dedup = store.find("dedup", plan["dedup"].node.key)
    if dedup is None:
        raise ConfigError(
            f"no documents are deduplicated for this configuration ({plan['dedup'].why}); run"
            " `textmill refresh` with the same overrides"
        )
    if direction == "export":
        if file.exists():
            raise ConfigError(f"{file} is there already; name a new file")
        if not file.absolute().parent.is_dir():
            raise ConfigError(f"{file.parent} is not a folder; make it, or name another file")
        count = export_signatures(dedup, config.dedup, file)
        show(json.dumps({"file": str(file), "dedup": dedup.key, "signatures": count}))
        return 0
    for theirs, ours, similarity in match_signatures(dedup, config.dedup, file):
        row = {"id": theirs.hex(), "duplicate_of": ours.hex(), "similarity": similarity}
        show(json.dumps(row))
    return 0
