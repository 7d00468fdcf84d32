"""Shows what inference needs of a device: of the model that is planned, or of a
folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flows.compose import RunConfig
from flows.console import table
from llm_core.config import local_path, to_plain
from llm_core.model.config import ModelConfig
from llm_core.planner.hardware import HardwareConfig
from llm_core.planner.inference import ServingPlan, serving_plans
from llm_core.printing import printable_line


def folder_plan(folder: str, config: RunConfig) -> tuple[str, dict[str, Any]]:
    """(text for a terminal, the same as plain values) of a Hugging Face model. Raises ConfigError
    for another folder."""
    from llm_core.huggingface.export import read_config

    model = read_config(local_path(folder, "folder"))
    weights = f"{printable_line(folder)}: {model.num_parameters() / 1e9:,.3f} B weights"
    text, plain = serving_plan(model, config.hardware, config.generate.tensor_parallel)
    found = {"folder": folder, "weights": model.num_parameters(), "inference": plain}
    return f"{weights}\n\n{text}", found


def serving_plan(
    model: ModelConfig, hardware: HardwareConfig, num_devices: int
) -> tuple[str, list[dict[str, Any]]]:
    """num_devices: tensor ranks that share the model."""
    plans = serving_plans(model, hardware, num_devices)
    return _shown(plans, hardware, num_devices), [to_plain(each) for each in plans]


def _shown(plans: Sequence[ServingPlan], hardware: HardwareConfig, num_devices: int) -> str:
    memory = [
        (
            f"{each.weights}, {each.cache}",
            f"{each.weights_bytes / 1e9:,.2f}",
            f"{each.cache_bytes_per_token / 1024:,.1f}",
            *(_fits(at.static_sequences, at.paged_sequences) for at in each.contexts),
        )
        for each in plans
    ]
    speed = [
        (
            f"{each.weights}, {each.cache}",
            *(
                f"{at.alone_tokens_per_s:,.0f} … {at.most_tokens_per_s:,.0f}"
                if at.paged_sequences
                else "–"
                for at in each.contexts
            ),
        )
        for each in plans
    ]
    lengths = [f"{at.context_tokens:,}" for at in plans[0].contexts]
    prefill = ", ".join(f"{at.context_tokens:,}: {at.prefill_s:,.3g}" for at in plans[0].contexts)
    devices = f"{num_devices} x {hardware.name}"
    return "\n".join(
        [
            f"inference on {devices}: sequences of so many tokens that fit",
            table(("weights, cache", "GB", "KiB a token", *lengths), memory),
            "",
            "tokens/s of decoding at most, one sequence … all that fit",
            table(("weights, cache", *lengths), speed),
            "",
            f"seconds to read a prompt of so many tokens: {prefill}",
        ]
    )


def _fits(static: int, paged: int) -> str:
    return f"{static:,}" if static == paged else f"{static:,} ({paged:,} paged)"
