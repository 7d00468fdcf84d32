"""What the command line says to mistakes: one line that names value, rule and way out, and exit
code 2."""

from __future__ import annotations

import pytest

from tests.flows.conftest import RunCli

MISTAKES = {
    "typo": (["run", "optm.lr=1"], ["optm", "did you mean optim?"]),
    "typo in a group": (
        ["run", "tokenizer.vocb_size=512"],
        ["tokenizer.vocb_size", "did you mean vocab_size?"],
    ),
    "added typo": (["run", "+tokenizer.typo=1"], ["tokenizer.typo", "is not a known setting"]),
    "forced typo": (["run", "++typo=1"], ["typo is not a known setting"]),
    "wrong type": (
        ["run", "tokenizer.vocab_size=many"],
        ["tokenizer.vocab_size ('many')", "a whole number"],
    ),
    "broken rule": (["run", "dedup.num_bands=13"], ["num_bands (13)", "try"]),
    "rule between groups": (
        ["run", "train.seq_len=4096", "model=tiny"],
        ["train.seq_len (4096)", "model.max_seq_len"],
    ),
    "training too large for its devices": (
        ["run", "hardware=h100", "hardware.memory_gb=0.01"],
        ["training needs", "H100 SXM has 0.01 GB", "memory.if_too_large=warn"],
    ),
    "no data": (
        ["run", "source=files"],
        ["source.paths is empty", "source.paths='[my/*.jsonl]'", "run=demo"],
    ),
    "missing file": (["run", "source.paths=[no/such.jsonl]"], ["no/such.jsonl"]),
    "bad choice": (
        ["run", "tokenizer=bpee"],
        ["tokenizer (bpee) is not a choice", "did you mean bpe?"],
    ),
    "bad group": (["run", "tokeniser=bpe"], ["tokeniser", "did you mean tokenizer?"]),
    "added choice": (["run", "+tokenizer=unigram"], ["tokenizer=choice"]),
    "bad overlay": (["run", "run=dmeo"], ["run (dmeo)", "did you mean demo?"]),
    "bad stage": (
        ["run", "start=tokeniser"],
        ["start (tokeniser) is not a stage", "did you mean tokenizer?"],
    ),
    "bad forced stage": (["run", "force=[trian]"], ["force (trian)", "did you mean train?"]),
    "exclusive controls": (["run", "start=train", "only=bench"], ["exclude each other"]),
    "number for a choice": (["run", "quality=3"], ["quality (3) is not a choice; known: by_kind,"]),
    "null for a choice": (
        ["run", "optim=null"],
        ["optim (null) is not a choice; known: adafactor"],
    ),
    "mapping for a choice": (["run", "optim={lr: 3}"], ["optim ({lr: 3}) is not a choice"]),
    "choice added to one": (["run", "+model=tiny"], ["model has a choice already", "without +"]),
    "other choice added": (["run", "+model=small"], ["model has a choice already", "without +"]),
    "plan without a setting": (["plan", "~source.nothing"], ["~source.nothing removes nothing"]),
    "bad syntax": (["run", "a=b=c"], ["'a=b=c' is not an override", "key=value"]),
    "no equals sign": (["run", "tokenizer"], ["'tokenizer' is not an override"]),
    "sweep without -m": (["run", "optim.lr=1e-3,3e-3"], ["add -m"]),
    "bad point of a sweep": (["run", "-m", "tokenizer=bpe,nope"], ["tokenizer (nope)"]),
    "removed default": (["run", "~tokenizer.kind"], ["~tokenizer.kind removes nothing"]),
    "removed group": (["run", "~tokenizer"], ["tokenizer has no value"]),
    "unknown option": (["run", "--dry"], ["--dry is not an option"]),
    "unknown option of a command": (
        ["gc", "--yess"],
        ["--yess is not an option", "did you mean --yes?"],
    ),
    "option with a wrong value": (["run", "--cfg", "jb"], ["'jb' is not one of 'job', 'hydra'"]),
    "option without a value": (["run", "--cfg"], ["--cfg"]),
    "value for a switch": (["gc", "--yes=3"], ["'--yes' does not take a value"]),
    "unknown shell": (["completion", "tcsh"], ["completion takes one shell", "did you mean"]),
    "sweep of a page": (
        ["run", "-m", "--cfg", "job"],
        ["-m runs a sweep and --cfg shows something", "give one of them"],
    ),
    "unknown flow": (["rnu"], ["rnu is not a flow or command", "did you mean run?"]),
    "unknown flow of a plan": (["plan", "trian"], ["trian is not a flow", "did you mean train?"]),
    "no workers": (["run", "num_workers=0"], ["num_workers (0)"]),
    "bad orchestrator": (
        ["run", "orchestrator=airflow"],
        ["orchestrator (airflow) is not a choice"],
    ),
    "bad tracking uri": (["run", "tracking.uri=somewhere"], ["tracking", "somewhere", "sqlite:"]),
    "prompt missing": (["generate"], ["needs a prompt"]),
    "prompt forgotten": (
        ["generate", "run=demo"],
        ["needs a prompt", "'run=demo' looks like a setting", "such a prompt goes after --"],
    ),
    "prompt like a switch": (
        ["generate", "-5 is"],
        ["needs a prompt", "'-5 is' looks like a setting", "such a prompt goes after --"],
    ),
    "prompt after overrides": (["generate", "Once", "upon"], ["'upon' is not an override"]),
    "export to nowhere": (["export-shards", "megatron"], ["needs a form and a folder"]),
    "exchange without a direction": (
        ["exchange-signatures", "out.parquet"],
        ["needs a direction and a file", "export FILE, or match FILE"],
    ),
    "exchange of nothing": (
        ["exchange-signatures", "export", "out.parquet"],
        ["no documents are deduplicated", "textmill refresh"],
    ),
    "export of nothing": (
        ["export-shards", "megatron", "out"],
        ["no shards are made", "textmill refresh"],
    ),
    "import of nothing": (
        ["refresh", "tokenizer=import"],
        ["tokenizer.path (null)", "tokenizer.path=FILE"],
    ),
    "shards of nothing": (["refresh", "shards=import"], ["shards.path (null)", "shards.path=DIR"]),
    "nothing trained": (["generate", "Once"], ["no model is trained", "textmill train"]),
    "infinite number": (["run", "optim.lr=inf"], ["optim.lr (inf)", "a finite number"]),
    "no number": (
        ["run", "optim.weight_decay=nan"],
        ["optim.weight_decay (nan)", "a finite number"],
    ),
    "no number in a mapping": (
        ["run", "quality.thresholds={TOO_FEW_WORDS:nan}"],
        ["thresholds.TOO_FEW_WORDS (nan)"],
    ),
    "number beyond 64 bits": (
        ["run", "train.seed=99999999999999999999"],
        ["train.seed", "at most 64 bits"],
    ),
    "float beyond 64 bits": (
        ["run", "train.num_steps=1e30"],
        ["train.num_steps", "at most 64 bits"],
    ),
    "unbalanced bracket": (["run", "source.paths=[a"], ["'source.paths=[a' is not an override"]),
    "heads": (
        ["run", "model.num_heads=4", "model.num_kv_heads=3"],
        ["num_kv_heads (3)", "[1, 2, 4]"],
    ),
    "everything validation": (
        ["run", "documents.validation_frac=1"],
        ["validation_frac (1.0)", "0.05"],
    ),
    "unknown launcher": (["run", "hydra/launcher=nowhere"], ["hydra/launcher (nowhere)"]),
    "bad keep": (["gc", "keep=all"], ["keep (all)"]),
    "unknown measure": (
        ["plan", "dedup.survivor=[quality,id]", "dedup.quality_column=num_wrds"],
        ["dedup.quality_column (num_wrds)", "did you mean num_words"],
    ),
    "unknown source": (
        [
            "plan",
            "source=files",
            "source.sources.wiki.paths=[a]",
            "documents.mixture.source_frac={wkii: 0.5}",
        ],
        ["source_frac names wkii, which is not a source", "did you mean wiki"],
    ),
    "unknown language": (
        ["plan", "documents.mixture.language_frac={eng: 0.5}"],
        ["language_frac names eng", "the label is en"],
    ),
    "folder of suites that is not there": (
        ["plan", "suites.folders=[no]"],
        ["suites.folders (", "no) has no suite.yaml, nor has a folder in it"],
    ),
    "suite that is not there": (
        ["plan", "contamination.suites.x.path=no.jsonl"],
        ["contamination.suites.x.path (no.jsonl)"],
    ),
    "suite that is a folder": (
        ["plan", "contamination.suites.x.path=/tmp"],
        ["contamination.suites.x.path (/tmp) is not a file"],
    ),
    "unknown column": (
        ["plan", "scores.classifiers.x.positives='kind = 1'"],
        ["scores.classifiers.x.positives", "kind"],
    ),
    "half a condition": (
        ["plan", "scores.perplexities.x.reference='true or'"],
        ["scores.perplexities.x.reference", "true or"],
    ),
    "public suffix": (
        ["plan", "quality.urls.domains=[co.uk]"],
        ["quality.urls.domains", "co.uk", "a public suffix"],
    ),
    "host for a page": (
        ["plan", "quality.urls.allow_urls=[e.org]"],
        ["quality.urls.allow_urls", "a whole host"],
    ),
    "two words for one": (
        ["plan", "quality.urls.keywords=['a b']"],
        ["quality.urls.keywords", "one word"],
    ),
    "list that is not there": (
        ["plan", "quality.keywords.x.files=[no]"],
        ["quality.keywords.x.files (no) is not a file"],
    ),
    "list for a mapping": (
        ["run", "source.exclude=[a]"],
        ["source.exclude=[a]", "give a mapping '{a: b}' for a mapping"],
    ),
    "number that is not a digit": (["gc", "keep=²"], ["keep (²)"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_one_line_and_exit_code_two(mistake: str, run_cli: RunCli) -> None:
    arguments, expected = MISTAKES[mistake]
    result = run_cli(*arguments)
    lines = result["err"].strip().splitlines()
    assert result["code"] == 2 and len(lines) == 1, result["err"]
    assert lines[0].startswith("textmill: ") and "Traceback" not in lines[0]
    for words in expected:
        assert words in lines[0]
