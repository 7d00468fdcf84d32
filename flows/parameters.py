"""Keeps secrets out of the parameters of flow runs that this process starts: Prefect stores and
shows them.

A flow run is given masked overrides, and looks up in here what they stand for. Parameters of a
deployment are what was typed into Prefect, and stay that.
"""

from __future__ import annotations

from collections.abc import Sequence

from llm_core.secrets import mask_secrets

_WITHHELD: dict[str, str] = {}


def withhold(overrides: Sequence[str]) -> list[str]:
    """`overrides` as they may be shown."""
    shown = [mask_secrets(override) for override in overrides]
    _WITHHELD.update(
        {
            mask: override
            for mask, override in zip(shown, overrides, strict=True)
            if mask != override
        }
    )
    return shown


def reveal(overrides: Sequence[str]) -> list[str]:
    """What overrides of this process stood for before they were masked."""
    return [_WITHHELD.get(override, override) for override in overrides]
