"""Turns limits on scores into numbers that hold for every part, and draws documents.

A share (`keep_frac`), a quantile, or a draw is not a number that a document can be held against by
itself. Shares and quantiles are resolved once, over all documents with a score, whatever other
rules say of them (`tasks.corpus.score_cuts`): DCLM (Li et al. 2024) keeps the best tenth, CCNet
(Wenzek et al. 2020) cuts each language at its own percentiles, the default for perplexities. Draws
are functions of a document's id: `pareto` keeps a document where a Pareto variate is over 1 - score
(Brown et al. 2020, appendix A, shape 9), so that some of what a classifier dislikes stays;
`spare_frac` lets a share pass whatever its score. Documents without a score are not judged by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from llm_core.config import ConfigError, nearest
from tasks.corpus.documentset import read_table
from tasks.corpus.language_labels import OTHER_LANGUAGE
from tasks.corpus.score_cuts import WHOLE, Best, cuts_keeping
from tasks.definitions.features import FEATURES
from tasks.quality.config import QualityConfig
from tasks.quality.limits import Limit, drawn_feature
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import Part


def check_scores(config: QualityConfig, known: Sequence[str]) -> None:
    """Raise ConfigError for a limit on what is neither a feature nor one of the scores, and for
    shares of a part of the run."""
    measured = (*FEATURES, OTHER_LANGUAGE, *config.list_features())
    for name in known:
        if name in config.list_features():
            raise ConfigError(
                f"{name} is the name of a score and of a list in quality; rename one of them"
            )
    for where, limits in config.all_limits():
        for name, limit in limits.items():
            place = f"quality.{where}limits.{name}"
            if name not in measured and name not in known:
                hint = nearest(name, [*measured, *known])
                raise ConfigError(
                    f"{place} is neither a feature nor a score of this run (see"
                    f" scores.classifiers); {hint}"
                )
            if name in measured and limit.needs_score:
                raise ConfigError(
                    f"{place}: shares, quantiles and draws are for scores; set min or max for"
                    " the hits of a list"
                )
            if where and limit.needs_score:
                raise ConfigError(
                    f"{place}: shares, quantiles and draws hold for all documents; set them in"
                    f" quality.limits.{name}"
                )


def limited_scores(config: QualityConfig) -> list[str]:
    """Scores that some limit stands on, in a fixed order."""
    limited = {name for _, limits in config.all_limits() for name in limits}
    return sorted(limited.difference(FEATURES, {OTHER_LANGUAGE}, config.list_features()))


def check_windows(config: QualityConfig, num_windows: int) -> None:
    """Raise ConfigError for a limit on the share of other languages where it is not measured."""
    if num_windows < 2 and any(OTHER_LANGUAGE in limits for _, limits in config.all_limits()):
        raise ConfigError(
            f"quality.limits.{OTHER_LANGUAGE} needs labels of several places of a document; set"
            " language.windows=8"
        )


def resolve_limits(config: QualityConfig, scores: Artifact, parts: Sequence[Part]) -> QualityConfig:
    """The same limits with bounds in place of shares and quantiles. Raises ConfigError where no
    document has the score."""
    resolved = {
        name: _resolve(name, limit, scores, parts) if limit.is_share else limit
        for name, limit in config.limits.items()
    }
    return replace(config, limits=resolved)


def judged_scores(
    ids: Sequence[bytes], table: pa.Table, config: QualityConfig
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Columns of scores and draws for the sidecar, and the values that rules judge: NaN where null
    or spared."""
    columns: dict[str, Any] = {}
    judged: dict[str, np.ndarray] = {}
    for name in table.column_names:
        if name == "id":
            continue
        columns[name] = table[name]
        values = table[name].to_numpy(zero_copy_only=False).astype(np.float64)
        judged[name], limit = values, config.limits.get(name)
        if limit is None:
            continue
        over_draw = drawn_feature(name)
        if limit.pareto is not None:
            # The inverse of the distribution function, of a number in [0, 1).
            drawn = (1 - uniform(ids, name)) ** (-1 / limit.pareto) - 1
            judged[over_draw] = values - (1 - drawn)
            columns[over_draw] = pa.array(judged[over_draw], pa.float32(), from_pandas=True)
        if limit.spare_frac:
            spared = uniform(ids, f"spare {name}") < limit.spare_frac
            for column in judged.keys() & {name, over_draw}:
                judged[column] = np.where(spared, np.nan, judged[column])
    return columns, judged


def uniform(ids: Sequence[bytes], purpose: str) -> np.ndarray:
    """A number in [0, 1) for each document, by its id and what it is drawn for."""
    key = hashlib.blake2b(purpose.encode(), digest_size=16).digest()
    drawn = b"".join(hashlib.blake2b(one, digest_size=8, key=key).digest() for one in ids)
    # A float64 holds 53 bits exactly.
    return (np.frombuffer(drawn, "<u8") >> np.uint64(11)).astype(np.float64) / 2**53


def _resolve(name: str, limit: Limit, scores: Artifact, parts: Sequence[Part]) -> Limit:
    about: Mapping[str, Any] = scores.metrics["scores"][name]
    best: Best = about["best"]
    values, languages = score_values(name, parts)
    if limit.languages:
        values = np.where(np.isin(languages.astype(str), limit.languages), values, np.nan)
    each = about["cut_by_language"] if limit.each_language is None else limit.each_language
    groups = languages if each else None
    lower: dict[str, float] = {}
    upper: dict[str, float] = {}
    if limit.keep_frac is not None:
        (lower if best == "high" else upper).update(
            cuts_keeping(values, groups, limit.keep_frac, best)
        )
    if limit.min_quantile is not None:
        # A quantile counts from the low end, whichever end of the score is good.
        lower.update(cuts_keeping(values, groups, 1 - limit.min_quantile, "high"))
    if limit.max_quantile is not None:
        upper.update(cuts_keeping(values, groups, limit.max_quantile, "low"))
    if not lower and not upper:
        raise ConfigError(
            f"quality.limits.{name} asks for a share, and no document has this score; check the"
            " settings of scores"
        )
    whole = {"min": lower.pop(WHOLE, None), "max": upper.pop(WHOLE, None)}
    # What was resolved goes, or the limit would contradict its own bounds.
    shares = dict.fromkeys(("keep_frac", "min_quantile", "max_quantile"))
    return replace(limit, **shares, **whole, min_by_language=lower, max_by_language=upper)  # type: ignore[arg-type]


def score_values(name: str, parts: Sequence[Part]) -> tuple[np.ndarray, np.ndarray]:
    """A score of all documents (float64, NaN for null) and their languages."""
    values, languages = [np.zeros(0)], [np.zeros(0, object)]
    for part in parts:
        scores = read_table(part.payload["scores"], [name])[name]
        values.append(scores.to_numpy(zero_copy_only=False).astype(np.float64))
        labels = read_table(part.payload["language"], ["language"])["language"]
        languages.append(np.array(labels.to_pylist(), object))
    return np.concatenate(values), np.concatenate(languages)
