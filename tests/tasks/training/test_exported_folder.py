"""A model folder continues a prompt in transformers as it does here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import processors

from llm_core.huggingface.export import export_model, load_model
from llm_core.infer.choice.sampling import GREEDY
from llm_core.model.config import ModelConfig
from llm_core.model.init import init_weights
from llm_core.model.transformer import Transformer
from tasks.evaluation.generate import TextStream, generate_text
from tasks.runtime.artifact import Artifact
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.encoder import export_hugging_face, load_tokenizer
from tasks.tokenizer.stage import train_tokenizer
from tests.support.data.sample_documents import sample_texts, write_documents

PROMPTS = [
    "The ",
    "",
    " two  blanks",
    "naïve café",
    "日本語と中文",
    "<|endoftext|> spelled",
    "a=b\n\n\tif x:",
    "1234 5678",
    "The end.",
]
NEW_TOKENS = 12
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "gpt2": {
        "norm": "layer",
        "ffn": "gelu",
        "positions": "learned",
        "qkv_bias": True,
        "out_bias": True,
        "ffn_bias": True,
    },
    "gemma": {"norm": "offset_rms", "ffn": "geglu", "scaled_embeddings": True},
    "gpt_neox": {
        "norm": "layer",
        "ffn": "exact_gelu",
        "qkv_bias": True,
        "out_bias": True,
        "ffn_bias": True,
        "rotary_frac": 0.5,
        "parallel_residual": True,
    },
}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return write_documents(tmp_path_factory.mktemp("documents"), sample_texts(60, 800))


def make_tokenizer(documents: Artifact, folder: Path, **config: Any) -> Artifact:
    folder.mkdir(parents=True)
    return train_tokenizer(documents, folder, TokenizerConfig(**({"vocab_size": 600} | config)))


def make_folder(folder: Path, tokenizer: Artifact, family: str = "llama") -> Path:
    """What the train stage leaves, with weights that are random and large."""
    vocab_size, eos_id = tokenizer.metrics["vocab_size"], load_tokenizer(tokenizer.path).eos_id
    heads = 4 if family in ("gpt2", "gpt_neox") else 2
    shape = {
        "dim": 32,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": heads,
        "ffn_dim": 64,
        "max_seq_len": 96,
    }
    config = ModelConfig(
        vocab_size=vocab_size, **shape, tied_embeddings=family == "gpt2", **FAMILIES[family]
    )
    model = Transformer(config)
    init_weights(model, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)
    export_model(config, model.state_dict(), folder, eos_id=eos_id)
    export_hugging_face(tokenizer.path, folder)
    return folder


def check_parity(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ours, theirs = (
        load_tokenizer(folder),
        AutoTokenizer.from_pretrained(folder, padding_side="left"),
    )
    model = AutoModelForCausalLM.from_pretrained(folder)
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": ours.pad_id}
    texts = [generate_text(folder, folder, prompt, GREEDY, NEW_TOKENS).text for prompt in PROMPTS]
    assert len(set(texts)) > len(PROMPTS) // 2, "answers must depend on the prompts"

    def written(prompt: str, ids: list[int]) -> str:
        ids = ids[: ids.index(ours.eos_id)] if ours.eos_id in ids else ids
        return TextStream(ours, ours.encode(prompt)).add(ids)

    for batch in [[prompt] for prompt in PROMPTS] + [PROMPTS]:
        given = theirs(batch, return_tensors="pt", padding=True)
        rows = model.generate(**given, **options)[:, given["input_ids"].shape[1] :].tolist()
        answers = [written(*pair) for pair in zip(batch, rows, strict=True)]
        assert answers == [texts[PROMPTS.index(prompt)] for prompt in batch]
    assert written("", model.generate(**options)[0, 1:].tolist()) == texts[PROMPTS.index("")]


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_continues_prompts_of_every_family_as_we_do(
    family: str, documents: Artifact, tmp_path: Path
) -> None:
    check_parity(make_folder(tmp_path / "model", make_tokenizer(documents, tmp_path / "t"), family))


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "sentencepiece_bpe"])
def test_transformers_continues_prompts_of_every_tokenizer_as_we_do(
    kind: str, documents: Artifact, tmp_path: Path
) -> None:
    check_parity(
        make_folder(tmp_path / "model", make_tokenizer(documents, tmp_path / "t", kind=kind))
    )


def test_a_model_on_an_import_starts_from_end_of_text_whatever_the_import_began_with(
    documents: Artifact, tmp_path: Path
) -> None:
    """Special tokens named as in SentencePiece files, and a template for a start that training
    never shows."""
    own = make_tokenizer(
        documents, tmp_path / "own", kind="unigram", special_tokens=("<s>", "a b:c")
    )
    theirs = load_tokenizer(own.path)._model
    theirs.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", theirs.token_to_id("<s>"))]
    )
    (tmp_path / "published").mkdir()
    theirs.save(str(tmp_path / "published/tokenizer.json"))
    given = {"kind": "import", "path": tmp_path / "published", "eos_token": "a b:c"}
    made = make_tokenizer(documents, tmp_path / "import", **given)
    assert load_tokenizer(made.path).start_ids == (theirs.token_to_id("a b:c"),)
    check_parity(make_folder(tmp_path / "model", made))


@pytest.mark.parametrize("template", [None, "<s> $A", "$A <s>", "<s> <s> $A </s>"])
def test_a_published_folder_begins_a_prompt_as_its_own_template_does(
    template: str | None, documents: Artifact, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    made = make_tokenizer(documents, tmp_path / "t", special_tokens=("<s>", "</s>"))
    folder = make_folder(tmp_path / "model", made)
    described = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    described["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(described))
    if template is not None:
        model = load_tokenizer(folder)._model
        specials = [(name, model.token_to_id(name)) for name in ("<s>", "</s>")]
        model.post_processor = processors.Sequence(
            [
                processors.ByteLevel(),
                processors.TemplateProcessing(single=template, special_tokens=specials),
            ]
        )
        model.save(str(folder / "tokenizer.json"))
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    ids = [*ours.start_ids, *ours.encode("The end").tolist()]
    assert theirs("The end")["input_ids"][: len(ids)] == ids
    assert len(ours.start_ids) == (0 if template is None else template.split("$")[0].count("<s>"))
    assert (
        generate_text(folder, folder, "", GREEDY, 3).num_tokens <= 3
    )  # also where nothing begins it
    assert load_model(folder).config.vocab_size == ours.vocab_size
