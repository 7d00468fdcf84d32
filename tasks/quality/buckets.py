"""Splits the documents of each language into head, middle and tail by a score, as CCNet does.

CCNet (Wenzek et al. 2020, section 4.2; cc_net/perplexity.py) parts the documents of each language
at two percentiles of their perplexity under a model of good text, the 30th and the 60th, so that
each language has a head however hard the model finds it. Here of any score. A value as good as a
cut is on the better side; a document without the score is in no bucket.

Out: `bucket` (head, middle, tail or null) beside the verdict. Nothing is dropped here:
`documents.mixture.bucket_repeats` reads buckets more or less often, or not at all. Cost: the scores
of all documents once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from llm_core.config import ConfigError, nearest
from tasks.corpus.score_cuts import BUCKETS, NO_BUCKET, cuts_keeping
from tasks.quality.config import BucketConfig
from tasks.quality.score_limits import score_values
from tasks.runtime.artifact import Artifact
from tasks.runtime.parts import Part


def resolve_buckets(
    config: BucketConfig, scores: Artifact, parts: Sequence[Part]
) -> dict[str, Any]:
    """`score`, which end of it is `best`, and the two `cuts` of each language with scored
    documents; empty where not asked for.

    Raises ConfigError for a name that is not a score of the run, and for cuts in the wrong order.
    """
    if config.score is None:
        return {}
    known = list(scores.metrics["scores"])
    if config.score not in known:
        hint = nearest(config.score, known) if known else "it has none; take scores=prose"
        raise ConfigError(
            f"quality.buckets.score ({config.score}) is not a score of this run; {hint}"
        )
    best = scores.metrics["scores"][config.score]["best"]
    values, languages = score_values(config.score, parts)
    heads = cuts_keeping(values, languages, config.head_frac, best)
    middles = cuts_keeping(values, languages, config.head_frac + config.middle_frac, best)
    cuts = {language: [heads[language], middles[language]] for language in sorted(heads)}
    for language, (head, middle) in config.cuts.items():
        if head == middle or (head > middle) != (best == "high"):
            side = "greater" if best == "low" else "less"
            raise ConfigError(
                f"quality.buckets.cuts.{language} ({head:g}, {middle:g}): {best} values of"
                f" {config.score} are good, so the second cut must be {side} than the first"
            )
        cuts[language] = [head, middle]
    return {"score": config.score, "best": best, "cuts": cuts}


def bucket_of(resolved: Mapping[str, Any], values: np.ndarray, languages: np.ndarray) -> pa.Array:
    """The bucket of each document: values of the score (NaN where there is none) and language
    labels."""
    # With this sign the lower value is the better one of every score.
    sign = -1.0 if resolved["best"] == "high" else 1.0
    cuts = np.array(
        [resolved["cuts"].get(language, (np.nan, np.nan)) for language in languages], np.float64
    ).reshape(-1, 2)
    worse = (sign * values[:, None] > sign * cuts).sum(axis=1)
    missing = np.isnan(values) | np.isnan(cuts[:, 0])
    return pa.array(BUCKETS).take(pa.array(worse, mask=missing))


def count_buckets(
    buckets: pa.Array, num_bytes: np.ndarray, languages: np.ndarray
) -> dict[str, Any]:
    """{language: {bucket: documents and bytes}}; documents without a bucket under `(none)`."""
    names = np.array(buckets.fill_null(NO_BUCKET).to_pylist(), object)
    languages = languages.astype(str)
    table: dict[str, Any] = {}
    for label in sorted(set(languages.tolist())):
        table[label] = {}
        for name in (*BUCKETS, NO_BUCKET):
            sizes = num_bytes[(languages == label) & (names == name)]
            table[label][name] = {"documents": len(sizes), "bytes": int(sizes.sum())}
    return table
