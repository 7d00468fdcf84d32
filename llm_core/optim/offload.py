"""Updates weights whose optimizer state has no room on the device: it comes by in pages, and the
update is the same.

The update happens where the weights are. On a GPU they stay there, so pages of state are streamed
through it beside the update: 16 bytes a weight and step with AdamW, half of them each way; the
kernel is that of a run without offload, and so is every bit. With `memory.weights_in=host` weights
and gradients are in main memory and the CPU updates them there, 4 bytes a weight each way
(ZeRO-Offload, Ren et al., 2021). On disk (`optim.state_in=disk`, ZeRO-Infinity, Rajbhandari et al.,
2021) pages come through main memory to either. `llm_core.memory.paging` moves them.

A page is a run of elements of some pieces, because embeddings alone are larger than the buffers
should be: so rules must work element by element, as AdamW and Lion do. Names and shapes of what is
saved are those of whole pieces; a checkpoint does not tell where state was, and what lies in main
memory or on disk is scratch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from llm_core.config import ConfigError
from llm_core.memory.backing import InMemory, OnDisk, padded
from llm_core.memory.paging import Lanes, Pager, Placed
from llm_core.optim.config import OptimConfig
from llm_core.optim.method import Method, State, Update
from llm_core.optim.pieces import Piece, local_size

PAGE = 1 << 23
"""Elements of a page: enough for transfers at full speed, and three are small beside the state."""
GRAIN = 2048
"""Pages are cut at its multiples, so that runs of two-byte numbers suit direct I/O."""


class Offloaded:
    """An update rule whose state lies elsewhere; a `Method` as the rule is."""

    @torch.no_grad()
    def __init__(
        self,
        pieces: Sequence[Piece],
        make: Callable[[list[Piece]], Method],
        open_backing: Callable[[int], InMemory | OnDisk],
        lanes: Lanes | None,
        page: int,
    ) -> None:
        """make: the rule over pieces, with zero state. open_backing: of a size. page: elements."""
        self._methods: list[Method] = []
        pages: list[list[Placed]] = []
        homes: dict[tuple[int, str], tuple[int, torch.dtype]] = {}
        end = 0
        for members in cut(pieces, page):
            indices = {run: index for index, run in members}
            method = make(list(indices))
            placed = []
            for state in method.states():
                run, tensor = state.weight, state.piece
                assert isinstance(run, Piece)
                key = indices[run], state.kind
                if key not in homes:
                    # Room for the whole piece: its runs lie in several pages, and a checkpoint
                    # wants it in one.
                    homes[key] = end, tensor.dtype
                    end += padded(local_size(pieces[key[0]]) * tensor.itemsize)
                first = 0 if run.elements is None else run.elements[0]
                placed.append(Placed(tensor, tensor.shape, homes[key][0] + first * tensor.itemsize))
                # So that one page at a time takes memory of the device.
                tensor.data = tensor.new_empty(0)
            self._methods.append(method)
            pages.append(placed)
        backing = open_backing(end)
        self.pager = Pager(pages, backing, lanes)
        self._states = []
        for (index, kind), (begin, dtype) in homes.items():
            piece = pieces[index]
            flat = backing.bytes_N[begin : begin + local_size(piece) * dtype.itemsize].view(dtype)
            self._states.append(State(piece, kind, flat.view(piece.data.shape), piece.place))

    def states(self) -> Iterator[State]:
        self.pager.settle()
        yield from self._states

    def update(self, step: Update) -> None:
        for number in self.pager.turns():
            self._methods[number].update(step)


def offloaded(
    pieces: Sequence[Piece],
    make: Callable[[list[Piece]], Method],
    config: OptimConfig,
    scratch: Path | None,
) -> Offloaded:
    """The rule with its state where `config` says; scratch: folder where it names none."""
    device = pieces[0].weight.device
    on_gpu = device.type == "cuda"
    lanes = Lanes(device) if on_gpu else None
    if config.state_in == "host":
        return Offloaded(
            pieces, make, lambda num_bytes: InMemory(num_bytes, pinned=on_gpu), lanes, PAGE
        )
    folder = config.state_folder or scratch
    if folder is None:
        raise ConfigError(
            "optim.state_folder (null) must name a folder for optim.state_in=disk: there is no work"
            " directory"
        )
    return Offloaded(pieces, make, lambda num_bytes: OnDisk(num_bytes, folder), lanes, PAGE)


def cut(pieces: Sequence[Piece], page: int) -> list[list[tuple[int, Piece]]]:
    """Pages of at most `page` elements: lists of (index of a piece, the piece or a run of it)."""
    assert page % GRAIN == 0, "runs would not begin where ranges of bytes may"
    pages: list[list[tuple[int, Piece]]] = []
    room = 0
    for index, piece in enumerate(pieces):
        size = local_size(piece)
        runs = [piece]
        if size > page:
            bounds = ((begin, min(begin + page, size)) for begin in range(0, size, page))
            runs = [dataclasses.replace(piece, elements=elements) for elements in bounds]
        for run in runs:
            if not pages or local_size(run) > room:
                pages.append([])
                room = page
            pages[-1].append((index, run))
            room -= local_size(run)
    return pages
