"""Configures `tasks.dedup.stage`: what counts as a copy, which copy survives, and what is cut out
of those that stay."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from llm_core.config import IN_KEY_IF_SET, NOT_IN_KEY, ConfigError
from tasks.corpus.named_labels import NAMES_SOURCES

SurvivorRule = Literal["source_priority", "quality", "group", "length", "date", "id"]

TRACKING_PARAMETERS = ("utm_*", "gclid", "fbclid", "msclkid", "mc_cid", "mc_eid")
INDEX_FILES = (
    "scheme.json",
    "documents.parquet",
    "urls.parquet",
    "signatures.arrow",
    "bands.arrow",
    "shingles.arrow",
    "pieces.arrow",
)
"""Files of an index, in the folder `index/` of a dedup artifact (`tasks.dedup.index`)."""


@dataclass(frozen=True)
class CutsConfig:
    """Text that is cut out of documents that stay, because an earlier document, or an earlier
    place, has it too."""

    pieces: Literal["none", "line", "paragraph"] = "none"
    """What is kept only once in the whole corpus. paragraph: runs of lines between blank ones."""

    min_piece_units: int = 13
    """Shorter pieces always stay: headings, salutations, list items."""

    piece_memory: Literal["exact", "bloom"] = "exact"
    """How pieces are remembered. exact sorts 128-bit hashes, 37 to 76 bytes a piece. bloom needs 4
    bytes at an error of 1e-6, and cuts a new piece with a probability of `bloom_error`."""

    bloom_error: float = 1e-6
    """Probability that a new piece is taken for a repeat."""

    substring_units: int = 0
    """Runs of at least so many units that occurred before are cut. 0 cuts none; 50 is usual (Lee et
    al., 2022)."""

    def __post_init__(self) -> None:
        if self.min_piece_units < 1:
            raise ConfigError(
                f"min_piece_units ({self.min_piece_units}) must be at least 1; try 13"
            )
        if not 1e-12 <= self.bloom_error <= 0.01:
            raise ConfigError(
                f"bloom_error ({self.bloom_error}) must be from 1e-12 to 0.01; try 1e-6"
            )
        if self.substring_units and not 20 <= self.substring_units <= 10_000:
            raise ConfigError(
                f"substring_units ({self.substring_units}) must be 0, or from 20 to 10000; try 50"
            )


@dataclass(frozen=True)
class DedupConfig:
    """How duplicates are found and which of them stays."""

    method: Literal["exact", "minhash"] = "minhash"
    """Which duplicates are removed. exact: equal texts only. minhash: near duplicates too, and
    families are found."""

    same_url: bool = False
    """Treat documents of one URL as copies, whatever their texts: versions of one page."""

    tracking_parameters: tuple[str, ...] = TRACKING_PARAMETERS
    """Query parameters that are ignored in comparing URLs; `*` at the end stands for any ending."""

    shingle_units: int = 5
    """Units in a shingle: words, characters of scripts without spaces, or signs that stand alone
    between blanks."""

    num_perms: int = 112
    """Number of min-hashes of a document."""

    threshold: float = 0.8
    """Least Jaccard similarity at which a document is removed as a duplicate of the survivor."""

    num_bands: int | None = 14
    """Number of bands of min-hashes, which must divide num_perms. Null lets datasketch choose bands
    and rows for `threshold`."""

    family_threshold: float = 0.5
    """Least Jaccard similarity of neighbours in a family."""

    num_family_bands: int | None = 28
    """As `num_bands`, for `family_threshold`."""

    full_bucket_documents: int = 16
    """In a bucket, so many of the most preferred documents are compared with each other. Every
    other one is compared with the first."""

    survivor: tuple[SurvivorRule, ...] = ("length", "id")
    """What decides which duplicate stays, first rule first: the earlier place in `source_priority`,
    the higher `quality_column`, the `group_key` with more documents, more bytes of text, the
    earlier `added_at` (compared as text, missing last), the smaller id."""

    source_priority: tuple[str, ...] = field(default=(), metadata=NAMES_SOURCES)
    """Sources from most to least preferred for the rule `source_priority`; a source that is not
    listed comes last."""

    quality_column: str | None = None
    """Column of the quality sidecar for the rule `quality`; higher is better, missing last."""

    group_key: str | None = field(default=None, metadata=IN_KEY_IF_SET)
    """Metadata key for the rule `group`, as `repository` of code: of two groups that share
    documents, one keeps all of them. Documents without a group come last."""

    cuts: CutsConfig = CutsConfig()
    """Repeated text within documents that stay."""

    index: Path | None = field(default=None, metadata=NOT_IN_KEY)
    """An earlier dedup artifact that kept its index, as a folder or a key in the store. Documents
    are compared with all of its documents, which are preferred. Its content is part of the key."""

    chain: str | None = field(default=None, metadata=NOT_IN_KEY)
    """Name of a chain of runs in one store: each continues from the index of the previous one, the
    first from `index`, if given."""

    keep_index: bool = False
    """Write the index that later runs need to compare with these documents: about 0.8 kB a
    document, and 4 bytes a shingle."""

    seed: int = 1
    """Seed of the min-hash permutations."""

    def __post_init__(self) -> None:
        if self.shingle_units < 1:
            raise ConfigError(f"shingle_units ({self.shingle_units}) must be at least 1; try 5")
        if not 2 <= self.num_perms <= 4096:
            raise ConfigError(f"num_perms ({self.num_perms}) must be from 2 to 4096; try 112")
        for name, bands in (
            ("num_bands", self.num_bands),
            ("num_family_bands", self.num_family_bands),
        ):
            if bands is not None and (bands < 1 or self.num_perms % bands):
                good = max(d for d in range(1, max(bands, 1) + 1) if self.num_perms % d == 0)
                raise ConfigError(
                    f"num_perms ({self.num_perms}) must be a multiple of {name} ({bands}); try"
                    f" {name}={good}"
                )
        if not 0 < self.family_threshold <= self.threshold <= 1:
            raise ConfigError(
                f"family_threshold ({self.family_threshold}) and threshold ({self.threshold}) must"
                " satisfy 0 < family_threshold <= threshold <= 1; try 0.5 and 0.8"
            )
        if self.full_bucket_documents < 2:
            raise ConfigError(
                f"full_bucket_documents ({self.full_bucket_documents}) must be at least 2; try 16"
            )
        self._check_survivor()
        if any("*" in name[:-1] or not name for name in self.tracking_parameters):
            raise ConfigError(
                f"tracking_parameters ({list(self.tracking_parameters)}) must be names, with * at"
                " the end only; try utm_*"
            )
        if (self.index or self.keep_index) and self.cuts.substring_units:
            raise ConfigError(
                f"cuts.substring_units ({self.cuts.substring_units}) needs the texts of all"
                " documents, which an index does not hold; set it to 0, or set keep_index=false"
                " and index=null"
            )
        if self.keep_index and self.cuts.pieces != "none" and self.cuts.piece_memory == "bloom":
            raise ConfigError(
                "cuts.piece_memory (bloom) does not store the pieces that keep_index needs; set"
                " cuts.piece_memory=exact, or keep_index=false"
            )
        if self.chain is not None and not (self.keep_index and self.chain.strip()):
            raise ConfigError(
                f"chain ({self.chain!r}) must be a name and needs keep_index=true; try"
                " dedup=indexed dedup.chain=crawl"
            )
        if not 0 <= self.seed < 1 << 32:
            raise ConfigError(f"seed ({self.seed}) must be in 0 .. 2^32 - 1; try 1")

    def _check_survivor(self) -> None:
        if self.survivor[-1:] != ("id",) or len(set(self.survivor)) < len(self.survivor):
            raise ConfigError(
                f"survivor ({list(self.survivor)}) must name each rule once and end with id, so"
                " that no two documents tie; try survivor='[length,id]'"
            )
        for rule, name, value, example in (
            ("source_priority", "source_priority", self.source_priority, "'[wiki,web]'"),
            ("quality", "quality_column", self.quality_column, "c4_kept_line_frac"),
            ("group", "group_key", self.group_key, "repository"),
        ):
            if rule in self.survivor and not value:
                raise ConfigError(
                    f"survivor ({list(self.survivor)}) has the rule {rule}, which needs {name}; try"
                    f" {name}={example}"
                )
            if value and rule not in self.survivor:
                raise ConfigError(
                    f"{name} ({value}) is used only by the rule {rule}; add {rule} to survivor, or"
                    f" leave {name} out"
                )

    def input_files(self) -> dict[str, Path]:
        """The files of the index, whose contents are part of the key. Raises ConfigError where
        there is none."""
        if self.index is None:
            return {}
        folder = self.index / "index"
        files = {
            f"index/{name}": folder / name for name in INDEX_FILES if (folder / name).is_file()
        }
        if f"index/{INDEX_FILES[0]}" not in files:
            raise ConfigError(
                f"dedup.index ({self.index}) is neither a dedup artifact with an index nor the"
                " key of one in the store; make one with dedup.keep_index=true"
            )
        return files

    def in_store(self, store: Path) -> DedupConfig:
        """The same with an index that was given as a key in place of its folder."""
        if self.index is None or len(self.index.parts) != 1 or self.index.is_dir():
            return self
        return replace(self, index=store / "dedup" / self.index)
