"""Labels each document with the language it is written in.

fastText's lid.176 (Joulin et al. 2016, "Bag of Tricks for Efficient Text Classification"; 176
Wikipedia languages, CC BY-SA 3.0) reads the first `prefix_chars` characters, lower-cased because
capitals say little about language and much about headlines. Runs of white space, newlines among
them, become one space: the model reads one line, and words that only a newline parts must stay
apart.

A label whose language is not written in the script of four fifths of the letters
(tasks.definitions.scripts) is contradicted: the best label of the model that is takes its place, or
the one language of that script. Vowel marks of Arabic are left out, which its Wikipedia seldom
writes: with them Arabic reads as Mazanderani (mzn).

In: id, text. Out: a sidecar `id`, `language` (the model's label, an ISO 639-1 or -3 code, or
`und`), `score` float32 (probability of the label, kept also where it is too low to name it; the
share of letters in its script where the script alone decides). Nothing is dropped here; quality
rules and mixtures use the label. `und`: a score under `min_score`, or a prefix without a single
letter. Cost: the model, a constant per document by the prefix bound: some 50 microseconds for 1000
characters. Models like lid.176, with a softmax tree, are read and applied by `tasks.fasttext.tree`;
others by fastText itself, four times as slow and holding the GIL. With `windows`, places all over a
document are labelled too, and the share of other languages is a column `other_language_frac`, on
which quality may set a limit; the label stays that of the prefix.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_core.config import ConfigError
from tasks.corpus.documentset import (
    ID,
    SIDECAR_FILE,
    document_parts,
    link_sidecars,
    read_table,
    sum_counters,
    text_buffers,
    write_table,
)
from tasks.corpus.language_labels import OTHER_LANGUAGE, UNDETERMINED
from tasks.corpus.tally import tally_columns
from tasks.definitions.scripts import SCRIPTS, only_language_of, scripts_of
from tasks.fasttext.files import load_fasttext
from tasks.fasttext.tree import SoftmaxTree, label_prefixes, read_tree
from tasks.language.config import LanguageConfig
from tasks.runtime.artifact import Artifact, check_accounting
from tasks.runtime.inputs import digest_input, load_once
from tasks.runtime.keys import digest
from tasks.runtime.parts import Part, RunParts, serial

LEAST_LETTERS = 10
"""Letters of one script from which they can contradict a label; a name or a unit in another
alphabet is not a language."""
LEAST_SHARE = 0.8
"""Share of all letters that they need for it: manuals in Chinese or Russian may have more letters
of commands than of text."""
_LETTERS_OF_A_SIGN = np.array(
    [3 if script in ("HAN", "KANA", "HANGUL") else 1 for script in SCRIPTS], np.int32
)
"""A sign of these scripts says as much as some letters of others."""
MOST_SYLLABLES = 0.02
"""Share of Kana and Hangul among Han letters up to which a text is Chinese: the model takes
classical poems for Japanese."""
MIN_WINDOW_CHARS = 200
SURE_SCORE = 0.5
"""Probability from which the label of a window counts: of short pieces, names and quotations are
often labelled wrongly below it."""
_ARABIC_MARKS = dict.fromkeys([*range(0x64B, 0x660), 0x670, 0x640])
"""Vowel marks and the stroke that stretches words."""
LANGUAGE_SCHEMA = pa.schema([("id", ID), ("language", pa.string()), ("score", pa.float32())])


def identify_languages(
    ingest: Artifact, out_dir: Path, config: LanguageConfig, run_parts: RunParts = serial
) -> Artifact:
    """Label every document with its language. Deterministic, whatever the number of workers."""
    model = config.input_files()["lid_model"]
    model_digest = digest_input(model)
    # Finished parts are found by what they read, and they read the model too.
    parts = [
        Part(
            part.name,
            digest({"documents": part.digest, "lid_model": model_digest}),
            {**part.payload, "lid_model": str(model)},
        )
        for part in document_parts(ingest)
    ]
    results = run_parts(_identify_part, parts, config, out_dir)
    link_sidecars(results, out_dir)
    totals = sum_counters(result.counters for result in results)
    read = totals.get("read", 0)
    counters = {"read": read, "kept": read, "dropped": {}, "quarantined": 0}
    check_accounting("language", counters)
    corrected = totals.get("corrected_by_script", 0)
    metrics = {"languages": totals.get("languages", {}), "corrected_by_script": corrected}
    metrics |= {"windows": config.windows} if config.windows > 1 else {}
    return Artifact(out_dir, "language", counters, metrics)


def _identify_part(part: Part, directory: Path, config: LanguageConfig) -> Mapping[str, Any]:
    documents = read_table(part.payload["documents"], ["id", "text"])
    model = Path(part.payload["lid_model"])
    labels, scores, corrected = label_texts(documents["text"], model, config)
    table = pa.table([documents["id"], labels, scores], schema=LANGUAGE_SCHEMA)
    if config.windows > 1:
        others = _other_languages(documents["text"], labels, model, config)
        column = pa.array(others, pa.float32(), from_pandas=True)
        table = table.append_column(OTHER_LANGUAGE, column)
    write_table(table, directory / SIDECAR_FILE)
    languages = tally_columns(table["language"], pc.binary_length(documents["text"]))
    return {"read": len(labels), "languages": languages, "corrected_by_script": corrected}


def label_texts(
    texts: pa.ChunkedArray | pa.Array, model: Path, config: LanguageConfig
) -> tuple[list[str], np.ndarray, int]:
    """The label and the score (float32) of each text, and how many labels their script
    contradicted."""
    from tasks.kernels.models.softmax_tree import CORRECTED, SEEN_END, SEEN_LETTER
    from tasks.kernels.text.scripts import count_scripts
    from tasks.kernels.text.view import view_of

    view = view_of(*text_buffers(texts), signs=False)
    buf, begins = view.values, view.begins
    counts, ends = count_scripts(buf, begins, config.prefix_chars)
    letters = (counts * _LETTERS_OF_A_SIGN)[:, 1:]  # 0 is not a script
    totals, most = letters.sum(axis=1), letters.max(axis=1, initial=0)
    is_sure = (most >= LEAST_LETTERS) & (most > LEAST_SHARE * totals)
    scripts = np.where(is_sure, letters.argmax(axis=1) + 1, 0)
    # Han letters among Kana or Hangul may be Japanese or Korean: the model decides.
    kana, hangul = (letters[:, SCRIPTS.index(script) - 1] for script in ("KANA", "HANGUL"))
    scripts[(scripts == SCRIPTS.index("HAN")) & (kana + hangul > MOST_SYLLABLES * totals)] = 0
    tree = _load_tree(model)
    if tree is None:
        prefixes = [
            buf[begin:end].tobytes().decode()
            for begin, end in zip(begins[:-1].tolist(), ends.tolist(), strict=True)
        ]
        try:
            labels, scores, facts = _label_lines(_load_predict(model), prefixes, scripts.tolist())
        except RuntimeError as error:  # of fastText, for NaN
            raise ConfigError(
                f"language.model_path ({model}) fails ({error}), so its training went wrong; give"
                " another model"
            ) from error
    else:
        names = np.array([*map(_name, tree.labels), UNDETERMINED], object)  # the last is -1
        numbers, scores, facts = label_prefixes(
            tree,
            (buf, begins, ends),
            scripts,
            _written(tree.labels),
            SCRIPTS.index("ARABIC"),
            tuple(_ARABIC_MARKS),
        )
        labels = names[numbers]
    # The counts are of the text itself, where the mark that ends a line has a letter.
    wordless = (facts & SEEN_LETTER == 0) & ((totals == 0) | (facts & SEEN_END != 0))
    corrected = (facts & CORRECTED != 0) & ~wordless
    least = np.float32(config.min_score)
    for row in np.flatnonzero(corrected & (scores < least)).tolist():
        only = only_language_of(SCRIPTS[scripts[row]])
        if only:
            labels[row], scores[row] = only, most[row] / totals[row]
    scores[wordless] = 0
    labels[wordless | (scores < least)] = UNDETERMINED
    return labels.tolist(), scores, int(corrected.sum())


def _other_languages(
    texts: pa.ChunkedArray, labels: Sequence[str], model: Path, config: LanguageConfig
) -> np.ndarray:
    """Of the windows of each text that are sure of their label, the share with another one than the
    text; NaN where there are fewer than two, and without a label."""
    rows, windows = [], []
    for row, (text, label) in enumerate(zip(texts.to_pylist(), labels, strict=True)):
        if label != UNDETERMINED:
            found = window_spans(len(text), config.windows, config.prefix_chars)
            windows += [text[begin:end] for begin, end in found]
            rows += [row] * len(found)
    told, scores, _ = label_texts(pa.array(windows, pa.large_string()), model, config)
    sure = np.array([label != UNDETERMINED for label in told], bool) & (scores >= SURE_SCORE)
    owners = np.array(rows, np.int64)
    is_other = np.array([label != labels[row] for label, row in zip(told, rows, strict=True)], bool)
    counted = np.bincount(owners[sure], minlength=len(labels))
    others = np.bincount(owners[sure & is_other], minlength=len(labels))
    return np.where(counted > 1, others / np.maximum(counted, 1), np.nan)


def window_spans(num_chars: int, most: int, max_chars: int) -> list[tuple[int, int]]:
    """Up to `most` places of a text, evenly spread from its beginning to its end and apart; at
    least MIN_WINDOW_CHARS each, so none of a text that has no room for two."""
    size = min(max_chars, max(MIN_WINDOW_CHARS, num_chars // most))
    number = min(most, num_chars // size)
    if number < 2:
        return []
    begins = [i * (num_chars - size) // (number - 1) for i in range(number)]
    return [(begin, begin + size) for begin in begins]


def _label_lines(
    predict: Any, prefixes: Sequence[str], scripts: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `label_prefixes` finds, by fastText itself, for models of other kinds."""
    from tasks.kernels.models.softmax_tree import CORRECTED, SEEN_END, SEEN_LETTER

    labels = np.full(len(prefixes), UNDETERMINED, object)
    scores, facts = np.zeros(len(prefixes), np.float32), np.zeros(len(prefixes), np.int64)
    for row, (prefix, number) in enumerate(zip(prefixes, scripts, strict=True)):
        # "</s>" as a word of its own is fastText's end of line: what follows would not be read.
        parts = prefix.lower().split("</s>")
        line = " ".join(" ".join(parts).split())
        facts[row] = SEEN_END * (len(parts) > 1) | SEEN_LETTER * any(map(str.isalpha, line))
        script = SCRIPTS[number]
        if script == "ARABIC":
            line = line.translate(_ARABIC_MARKS)
        labels[row], scores[row] = _best(predict(line + "\n", 1, 0.0, "strict"))
        if number and labels[row] != UNDETERMINED and script not in scripts_of(labels[row]):
            facts[row] |= CORRECTED
            found = predict(line + "\n", -1, 0.0, "strict")
            written = [pair for pair in found if script in scripts_of(_name(pair[1]))]
            labels[row], scores[row] = _best(written)
    return labels, scores, facts


@functools.lru_cache(maxsize=2)
def _written(labels: tuple[str, ...]) -> np.ndarray:
    """bool [scripts, labels]: is the language written in the script? All are in script 0, which is
    none."""
    of_labels = [scripts_of(_name(label)) for label in labels]
    table = np.array([[script in scripts for scripts in of_labels] for script in SCRIPTS])
    table[0] = True
    return table


def _best(predictions: Sequence[tuple[float, str]]) -> tuple[str, float]:
    if not predictions:
        return UNDETERMINED, 0.0
    # The low-level call gives (probability, label) and works on every NumPy; softmax sums can pass
    # 1 by rounding.
    probability, label = predictions[0]
    return _name(label), min(probability, 1.0)


def _name(label: str) -> str:
    return label.removeprefix("__label__")


@load_once(2)
def _load_tree(model: Path) -> SoftmaxTree | None:
    try:
        return read_tree(model)
    except ValueError as error:
        raise ConfigError(
            f"language.model_path ({model}) is damaged ({error}); fetch the model again"
        ) from error


@load_once(2)
def _load_predict(model: Path) -> Any:
    try:
        predict = load_fasttext(model).f.predict
        predict("a\n", 1, 0.0, "strict")  # refused by models of words without labels
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"language.model_path ({model}) is not a fastText model of languages ({error}); give"
            " one like lid.176.ftz"
        ) from error
    return predict
