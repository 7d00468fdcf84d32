"""Updates weights whose optimizer state has no room on the device: it comes by in pages, and the
update is the same.

The update happens where the weights are. On a GPU they stay there, so pages of state are streamed
through it beside the update: 16 bytes a weight and step with AdamW, half of them each way; the
kernel is that of a run without offload, and so is every bit. With `memory.weights_in=host` weights
and gradients are in main memory and the CPU updates them there, 4 bytes a weight each way
(ZeRO-Offload, Ren et al., 2021). On disk (`optim.state_in=disk`, ZeRO-Infinity, Rajbhandari et al.,
2021) pages come through main memory to either. `llm_core.memory.paging` moves them. With
`memory.weights_in=disk` pages of weights come by beside those of state, 12 bytes a weight and step
from the disk and, with a copy in 16 bits that is only written, 14 to it.

A page is a run of elements of some pieces, because embeddings alone are larger than the buffers
should be: so rules must work element by element, as AdamW and Lion do. Names and shapes of what is
saved are those of whole pieces; a checkpoint does not tell where state was, and what lies in main
memory or on disk is scratch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.memory.backing import InMemory, OnDisk, padded
from llm_core.memory.paging import Lanes, Pager, Placed
from llm_core.memory.resting import RestingWeights
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
        resting: RestingWeights | None = None,
    ) -> None:
        """make: the rule over pieces, with zero state. open_backing: of a size. page: elements.
        resting: weights that come by with the state; None: they are where the update is."""
        self._methods: list[Method] = []
        pages: list[list[Placed]] = []
        homes: dict[tuple[int, str], tuple[int, torch.dtype]] = {}
        end = 0
        self._weights = None if resting is None else PagedWeights(resting)
        for members in cut(pieces, page):
            if self._weights is not None:
                members = self._weights.add_page(members)
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
        if self._weights is not None:
            self._weights.open()
        self._states = []
        for (index, kind), (begin, dtype) in homes.items():
            piece = pieces[index]
            flat = backing.bytes_N[begin : begin + local_size(piece) * dtype.itemsize].view(dtype)
            self._states.append(State(piece, kind, flat.view(piece.data.shape), piece.place))

    def states(self) -> Iterator[State]:
        self.pager.settle()
        if self._weights is not None:
            self._weights.resting.settle()
        yield from self._states

    def update(self, step: Update) -> None:
        if self._weights is None:
            for number in self.pager.turns():
                self._methods[number].update(step)
            return
        with self._weights.resting.updating():
            # Strict, so that the last page of both is written.
            for number, _ in zip(self.pager.turns(), self._weights.turns(), strict=True):
                self._methods[number].update(step)
                self._weights.copy(number)


@dataclass(frozen=True, eq=False)
class PagedPiece(Piece):
    """A piece whose weights come by in a page."""

    values: Tensor = field(kw_only=True)

    @property
    def data(self) -> Tensor:
        return self.values


class PagedWeights:
    """Weights that rest on a disk, in pages as those of the state; with them their copies in 16
    bits are written."""

    def __init__(self, resting: RestingWeights) -> None:
        self.resting = resting
        self._pages: list[list[Placed]] = []
        self._copied: list[list[tuple[Tensor, Tensor]]] = []

    def add_page(self, members: list[tuple[int, Piece]]) -> list[tuple[int, Piece]]:
        """The members of a page as pieces of it."""
        paged: list[tuple[int, Piece]] = []
        weights, copies, copied = list[Placed](), list[Placed](), list[tuple[Tensor, Tensor]]()
        for index, run in members:
            values, home = run.data.detach(), self.resting.home(run.weight)
            first = 0 if run.elements is None else run.elements[0]
            own = {each.name: getattr(run, each.name) for each in fields(run)}
            paged.append((index, PagedPiece(**own, values=values)))
            begin = home.begin + first * values.itemsize
            weights.append(Placed(values, values.shape, begin))
            if home.copy_begin is not None:
                copy = torch.empty(0, dtype=self.resting.half)
                begin = home.copy_begin + first * copy.itemsize
                copies.append(Placed(copy, values.shape, begin, is_made=True))
                copied.append((copy, values))
        self._pages.append([*weights, *copies])
        self._copied.append(copied)
        return paged

    def open(self) -> None:
        self.pager = Pager(self._pages, self.resting.backing)

    def turns(self) -> Iterator[int]:
        yield from self.pager.turns()

    def copy(self, number: int) -> None:
        """In the turn of a page, after its update."""
        for copy, values in self._copied[number]:
            copy.copy_(values)


def offloaded(
    pieces: Sequence[Piece],
    make: Callable[[list[Piece]], Method],
    config: OptimConfig,
    scratch: Path | None,
    resting: RestingWeights | None = None,
) -> Offloaded:
    """The rule with its state where `config` says; scratch: folder where it names none. resting:
    weights on a disk, if they are."""
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
    return Offloaded(
        pieces, make, lambda num_bytes: OnDisk(num_bytes, folder), lanes, PAGE, resting
    )


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
