"""Computes log-probabilities of answers under the reference model once, and keeps them.

The reference is the model in `train.init_from`, as it rests beside an adapter and with its factors
off. Whatever the layout, the table has a row for each pair: the training pairs in the order of the
shards, then the validation pairs that are used. Its file is named by a digest of all that decides
it (`key_of`), so runs that differ in beta, rates or rank read one table, and no run one of another
base.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from llm_core.config import key_config
from llm_core.data.batch import Batch
from llm_core.data.loader import Loader
from llm_core.durable import sync_file, sync_folder
from llm_core.model.lora import Factors
from llm_core.model.precision import autocast
from llm_core.parallel.fsdp import reshard
from llm_core.parallel.layout import Layout
from llm_core.parallel.ranks import Ranks
from llm_core.training.adapted import base_digest
from llm_core.training.preference.pairs import of_branches
from llm_core.training.run_config import RunConfig
from llm_core.training.step import place, token_losses
from llm_core.training.validate import ValidationSet

TABLE = "log_probabilities"
FOLDER = "references"
"""In the work directory of a run without `preference.references`."""
VERSION = 1

ReadRows = Callable[[np.ndarray], Batch]
"""Numbers of rows → their tokens."""


# N pairs of a split · B of a micro batch · T tokens · 2 answers, the chosen one first
class ReferenceTable:
    """The table of a run: read where it is kept, else computed and kept.

    It is put into `loader` and `validation`, whose pairs it is of.
    """

    def __init__(
        self,
        config: RunConfig,
        workdir: Path,
        ranks: Ranks,
        loader: Loader,
        validation: ValidationSet,
        splits: tuple[str, ...],
    ) -> None:
        self._config, self._ranks, self._loader = config, ranks, loader
        self.validation = validation
        folder = config.train.preference.references or workdir / FOLDER
        self._file = folder / f"{key_of(config, splits)}.safetensors"
        num_pairs = loader.num_samples + len(validation.ids_BT)
        self._table_N2 = kept(self._file, num_pairs, ranks)

    @property
    def is_kept(self) -> bool:
        return self._table_N2 is not None

    def complete(self, layout: Layout) -> None:
        """Hand out the table, computed by a layout with the weights that the run begins with where
        it was not kept."""
        num_train = self._loader.num_samples
        if self._table_N2 is None:
            num_val, data = len(self.validation.ids_BT), self.validation
            whole = Batch(data.ids_BT, data.targets_BT, data.documents_BT)

            def of_validation(numbers: np.ndarray) -> Batch:
                return Batch(*(None if x is None else x[numbers] for x in whole))  # type: ignore[arg-type]

            tables = [
                log_probabilities(layout, rows, number, self._config, self._ranks)
                for rows, number in ((self._loader.rows, num_train), (of_validation, num_val))
            ]
            self._table_N2 = torch.cat(tables)
            if self._ranks.is_first:
                keep(self._table_N2, self._file)
        self._loader.references = self._table_N2[:num_train].numpy()
        of_validation_N2 = self._table_N2[num_train:]
        self.validation = dataclasses.replace(self.validation, references_B2=of_validation_N2)


def key_of(config: RunConfig, splits: tuple[str, ...]) -> str:
    """What the table of a run is made of. splits: digests of the shards, which hold that of the
    tokenizer."""
    base = config.train.init_from
    train, adapter = config.train, config.adapter
    facts = {
        "version": VERSION,
        "base": None if base is None else base_digest(base),
        "model": key_config(config.model),
        "shards": splits,
        "seq_len": train.seq_len,
        "max_val_sequences": train.max_val_sequences,
        "vocab": train.init_vocab,
        "numbers": [train.dtype, train.float8, adapter.base_dtype, adapter.base_codes],
    }
    told = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


def kept(file: Path, num_pairs: int, ranks: Ranks) -> Tensor | None:
    """The table in a file, on the CPU of every rank; None where there is none that is whole. The
    first rank reads it for all."""
    table = torch.zeros(num_pairs, 2, dtype=torch.float64)
    found = False
    if ranks.is_first and file.is_file():
        try:
            read = load_file(file)[TABLE]
        except (SafetensorError, KeyError):
            read = table[:0]  # cut off, as by a full disk: computed again
        found = read.shape == table.shape and read.dtype == table.dtype
        table = read if found else table
    if not ranks.any(found):
        return None
    return ranks.sum(table.to(ranks.device)).cpu()


def keep(table_N2: Tensor, file: Path) -> None:
    """Write a table, which is read whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
    unfinished.write_bytes(save({TABLE: table_N2.contiguous()}))
    sync_file(unfinished)
    os.replace(unfinished, file)
    sync_folder(file.parent)


def log_probabilities(
    layout: Layout, read_rows: ReadRows, num_pairs: int, config: RunConfig, ranks: Ranks
) -> Tensor:
    """Float64 (N, 2) of the model as it is, with its factors off, on the CPU of every rank."""
    size, device = config.train.micro_batch_sequences, ranks.device
    table_N2 = torch.zeros(num_pairs, 2, dtype=torch.float64, device=device)
    with without_factors(layout):
        for begin in range(0, num_pairs, size * ranks.data_world):
            start = begin + ranks.data_rank * size
            own = np.arange(start, min(start + size, num_pairs))
            # Past the end a rank computes a row that counts for nothing: FSDP needs all in each.
            batch = read_rows(own if len(own) else np.zeros(1, np.int64))
            ids_BT, targets_BT, rows = place(batch, layout, ranks)
            with torch.no_grad(), autocast(device, config.train.dtype):
                losses_BT = token_losses(layout, ids_BT, targets_BT, rows)
            assert losses_BT is not None, "pairs are not trained in a pipeline"
            if ranks.counts_losses and len(own):
                table_N2[own[0] : own[-1] + 1] = -of_branches(losses_BT, rows["documents_BK"])
    reshard(layout.model)
    return ranks.sum(table_N2).cpu()


@contextmanager
def without_factors(layout: Layout) -> Iterator[None]:
    """Within, an adapter adds nothing."""
    factors = [module for module in layout.bare.modules() if isinstance(module, Factors)]
    scales = [module.scale for module in factors]
    for module in factors:
        module.scale = 0.0
    try:
        yield
    finally:
        for module, scale in zip(factors, scales, strict=True):
            module.scale = scale
