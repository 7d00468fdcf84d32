"""Refuses a run whose predicted peak of memory exceeds its device, and names what would fit.

The prediction is plain values in the config of the run: `llm_core.planner.fit` makes it, and the
trainer, which knows the device, does not know the planner. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_core.config import ConfigError
from llm_core.memory.config import IfTooLarge
from llm_core.printing import note

NUM_WAYS_SHOWN = 3


@dataclass(frozen=True)
class PredictedMemory:
    """Of the process that holds most, at its peak."""

    parts: dict[str, int]
    """{part: bytes}, with the allowance for drivers and fragments."""
    smaller: dict[str, int]
    """{setting, or several with blanks between: bytes of the peak with them}, mildest first."""

    @property
    def peak_bytes(self) -> int:
        return sum(self.parts.values())

    def require_room(self, room_bytes: float | None, device: str, if_too_large: IfTooLarge) -> None:
        """Raise ConfigError where the device has less memory than the peak, or say so where that is
        asked for. room_bytes: None is that of a CPU, which is not held against a run."""
        if room_bytes is None or if_too_large == "ignore" or self.peak_bytes <= room_bytes:
            return
        parts = sorted(self.parts.items(), key=lambda part: -part[1])
        shown = ", ".join(f"{name} {_gb(size)}" for name, size in parts if size)
        lacking = (
            f"training needs {_gb(self.peak_bytes)} GB of a device ({shown}), and {device} has"
            f" {_gb(room_bytes)} GB"
        )
        if if_too_large == "warn":
            note(f"warning: {lacking}; it is started all the same (memory.if_too_large=warn)")
            return
        raise ConfigError(
            f"{lacking}; {self._way_out(room_bytes)}; memory.if_too_large=warn starts it all the"
            " same"
        )

    def _way_out(self, room_bytes: float) -> str:
        fitting: dict[tuple[str, ...], str] = {}
        for words, size in self.smaller.items():
            if size <= room_bytes:
                # Of the values of one setting the first, which is the mildest.
                fitting.setdefault(tuple(word.split("=")[0] for word in words.split()), words)
        alone = [words for names, words in fitting.items() if len(names) == 1]
        if found := alone[:NUM_WAYS_SHOWN] or list(fitting.values())[:1]:
            return f"would fit: {' or '.join(found)}"
        return "no setting of memory alone makes it fit; use more devices or a smaller model"


def _gb(num_bytes: float) -> str:
    """Without the unit; small models too have parts that differ."""
    return f"{num_bytes / 1e9:,.1f}" if num_bytes >= 1e9 else f"{num_bytes / 1e9:.2g}"
