"""Checks that the settings in the guides on training and on several GPUs exist and are valid."""

import re
import shlex
from functools import reduce
from itertools import zip_longest

from flows.compose import compose
from flows.conf_files import choices
from llm_core.config import to_plain
from tasks.runtime.code import ROOT

PAGE = "\n".join(
    (ROOT / f"docs/guides/{name}.md").read_text("utf-8") for name in ("training", "several-gpus")
)
GROUPS = ("train", "optim", "parallel", "memory")
ALONE = ("train.float8", "train.kernels", "train.attention")
"""Settings that exclude some of the others."""
NAMED = sorted(set(re.findall(rf"[` ]((?:{'|'.join(GROUPS)})[a-z0-9_.]*)=?([^`\s\"]*)[`\"]", PAGE)))


def test_the_settings_and_choices_that_the_page_names_are_there() -> None:
    config = to_plain(compose())
    for name, _ in NAMED:
        reduce(lambda group, key: group[key], name.split("."), config)
    assert len(NAMED) > 30
    assert [
        (name, value)
        for name, value in NAMED
        if name in GROUPS and value and value not in choices(name)
    ] == []


def test_the_values_and_commands_that_the_page_names_are_taken() -> None:
    values: dict[str, list[str]] = {}
    for name, value in NAMED:
        if value and name not in GROUPS and value != "FOLDER":
            values.setdefault(name, []).append(f"{name}={value}")
    commands = re.findall(r"^textmill (?:run|train) (.+)$", PAGE.replace("\\\n", " "), re.MULTILINE)
    assert commands
    for command in commands:
        compose(shlex.split(command))
    for overlap in values.pop("parallel.tp_overlap"):
        compose(["parallel=tp", overlap])
    for ramp in values.pop("train.batch_ramp"):
        compose([ramp, "train.global_batch_sequences=256"])
    for growth in values.pop("train.init_vocab"):
        compose(["train.init_from=FOLDER", growth])
    for place in values.pop("memory.weights_in"):
        compose(["parallel=fsdp", place, "optim.state_in=disk"])
    for gathering in values.pop("memory.ffn_gather"):
        compose(["parallel=fsdp", "memory.ffn_tiles=2", gathering])
    alone = [[override] for name in ALONE for override in values.pop(name)]
    for together in [*alone, *zip_longest(*values.values())]:
        compose(
            [
                "parallel=fsdp",
                "train.dtype=bf16",
                *(override for override in together if override is not None),
            ]
        )
