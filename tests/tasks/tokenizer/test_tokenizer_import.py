"""A given tokenizer keeps its ids, is held to the same rules, and enters the key by its content."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import normalizers, processors

from llm_core.config import ConfigError
from tasks.runtime.artifact import Artifact
from tasks.runtime.stage import StageFailure
from tasks.tokenizer.bpe import train_bpe
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.encoder import export_hugging_face, load_tokenizer
from tasks.tokenizer.importing import import_tokenizer
from tasks.tokenizer.stage import train_tokenizer
from tests.support.data.sample_documents import sample_texts, write_documents

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return write_documents(tmp_path_factory.mktemp("documents"), sample_texts(40, 600))


def train(documents: Artifact, folder: Path, **config) -> Artifact:
    folder.mkdir(parents=True)
    return train_tokenizer(documents, folder, TokenizerConfig(**({"vocab_size": 600} | config)))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "sentencepiece_bpe"])
@pytest.mark.parametrize("form", ["folder", "tokenizer.json", "tokenizer.model"])
def test_an_import_of_our_own_gives_equal_ids(
    kind: str, form: str, documents: Artifact, tmp_path: Path
) -> None:
    if (kind, form) == ("bpe", "tokenizer.model"):
        return  # sentencepiece has no byte-level pieces
    own = train(documents, tmp_path / "own", kind=kind)
    path = own.path if form == "folder" else own.path / form
    made = train(documents, tmp_path / "import", kind="import", path=path)
    ours, theirs = load_tokenizer(own.path), load_tokenizer(made.path)
    assert (ours.eos_id, ours.pad_id, ours.vocab_size) == (
        theirs.eos_id,
        theirs.pad_id,
        theirs.vocab_size,
    )
    assert ours.bytes_per_token.tolist() == theirs.bytes_per_token.tolist()
    for text in sample_texts(60, 600):
        assert ours.encode(text).tolist() == theirs.encode(text).tolist()
    assert made.metrics["round_trip_frac"] == 1.0 and made.counters["documents"] == 0
    if form == "tokenizer.model":
        assert (made.path / form).read_bytes() == path.read_bytes()


def test_what_adds_or_cuts_tokens_is_taken_out_of_an_import(
    documents: Artifact, tmp_path: Path
) -> None:
    model = train_bpe(sample_texts(40, 600), 500)
    plain = [model.encode(text, add_special_tokens=False).ids for text in sample_texts(20, 600)]
    model.post_processor = processors.TemplateProcessing(
        single="<|pad|> $A", special_tokens=[("<|pad|>", 1)]
    )
    model.enable_truncation(5)
    model.enable_padding(length=9)
    model.save(str(tmp_path / "tokenizer.json"))
    made = train(documents, tmp_path / "import", kind="import", path=tmp_path / "tokenizer.json")
    assert [
        load_tokenizer(made.path).encode(text).tolist() for text in sample_texts(20, 600)
    ] == plain


def test_an_import_takes_the_names_of_its_special_tokens_from_beside_it(
    documents: Artifact, tmp_path: Path
) -> None:
    model = train_bpe(sample_texts(40, 600), 500)
    text = (
        json.dumps(json.loads(model.to_str()))
        .replace("<|endoftext|>", "</s>")
        .replace("<|pad|>", "<s>")
    )
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(
        ConfigError,
        match=r"eos_token \(<\|endoftext\|>\) is not in the vocabulary .* one of </s>, <s>",
    ):
        train(documents, tmp_path / "none", kind="import", path=tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "</s>"}, "chat_template": TEMPLATE})
    )
    made = load_tokenizer(train(documents, tmp_path / "named", kind="import", path=tmp_path).path)
    assert (made.eos_id, made.pad_id) == (0, 0)
    assert 0 not in made.encode("</s>") and made.decode(made.encode("</s>")) == "</s>"
    other = load_tokenizer(
        train(documents, tmp_path / "given", kind="import", path=tmp_path, eos_token="<s>").path
    )
    assert other.eos_id == 1


def test_an_import_that_changes_text_is_refused(documents: Artifact, tmp_path: Path) -> None:
    model = train_bpe(sample_texts(40, 600), 500)
    model.normalizer = normalizers.Lowercase()
    model.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(
        StageFailure, match=r"import tokenizer does not give \d+\.\d\d % of documents back"
    ):
        train(documents, tmp_path / "import", kind="import", path=tmp_path / "tokenizer.json")


def test_a_sentencepiece_model_that_changes_text_is_refused(
    documents: Artifact, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("\n".join(sample_texts(40, 600)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"),
        model_prefix=str(tmp_path / "m"),
        vocab_size=2000,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    with pytest.raises(
        ConfigError,
        match=(
            r"m\.model\) normalises text \(nmt_nfkc\), adds a leading space, removes spaces, has no"
        ),
    ):
        train(documents, tmp_path / "import", kind="import", path=tmp_path / "m.model")


def test_special_tokens_a_padded_vocabulary_and_a_chat_template_reach_auto_tokenizer(
    documents: Artifact, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    names = ("<|im_start|>", "<|im_end|>")
    made = train(
        documents,
        tmp_path / "t",
        vocab_size=601,
        special_tokens=names,
        pad_vocab_to=64,
        chat_template=TEMPLATE,
    )
    export_hugging_face(made.path, tmp_path / "model")
    ours, theirs = (
        load_tokenizer(tmp_path / "model"),
        AutoTokenizer.from_pretrained(tmp_path / "model"),
    )
    assert ours.vocab_size == len(theirs) == made.metrics["vocab_size"] == 640
    assert [theirs.convert_tokens_to_ids(name) for name in names] == [599, 600]
    ids = theirs.apply_chat_template(
        [{"role": "user", "content": "hello"}], tokenize=True, return_dict=False
    )
    assert (ids[0], ids[-2]) == (
        599,
        600,
    ) or 599 not in ids  # special tokens in text are text unless it is asked for
    spelled = "<|im_start|> <|reserved_0|>"
    assert ours.decode(ours.encode(spelled)) == spelled and ours.encode(spelled).max() < 599
    assert ours.bytes_per_token[599:].sum() == 0


def test_the_content_of_an_import_is_its_input(tmp_path: Path) -> None:
    train_bpe(["a b"], 300).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    config = TokenizerConfig(kind="import", path=tmp_path)
    name = "tokenizer_config.json"
    assert config.input_files() == {"json": tmp_path / "tokenizer.json", name: tmp_path / name}
    assert TokenizerConfig().input_files() == {}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "import"}, r"tokenizer\.path \(null\) must name what tokenizer=import reads"),
        ({"path": Path("x")}, r"path \(x\) is for kind=import"),
        ({"kind": "import", "path": Path("no.json")}, r"path \(no\.json\) does not exist"),
        ({"kind": "import", "path": Path(__file__)}, r"must end in \.json or \.model"),
        (
            {"kind": "import", "path": Path(__file__).parent},
            r"holds neither tokenizer\.json nor tokenizer\.model",
        ),
        ({"sample_exponent": 1.5}, r"sample_exponent \(1\.5\) must be from 0 to 1"),
        ({"kind": "wordpiece", "pre_tokenizer": "gpt2"}, r"pre_tokenizer \(gpt2\) is for kind=bpe"),
        ({"pad_vocab_to": 0}, r"pad_vocab_to \(0\) must be from 1 to 4096"),
        (
            {"special_tokens": ("<|pad|>",)},
            r"special_tokens has '<\|pad\|>', which is blank or a token already",
        ),
        (
            {"vocab_size": 258, "special_tokens": ("<|a|>",)},
            r"vocab_size \(258\) of bpe must be from 259",
        ),
        ({"eos_token": "</s>"}, r"eos_token and pad_token are for kind=import"),
    ],
)
def test_errors_say_what_to_do(config: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TokenizerConfig(**config).input_files()


def test_a_file_that_is_no_tokenizer_is_named(documents: Artifact, tmp_path: Path) -> None:
    contents = {
        "a.json": b"{",
        "b.json": b"{}",
        "c.model": b"\xff\xff",
        "d.json": b"\xff",
        "e.json": b"[]",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=f"{name}\\) is not"):
            train(documents, tmp_path / f"import-{name}", kind="import", path=tmp_path / name)


@pytest.mark.parametrize("content", ["{", "[]", "null"])
def test_a_damaged_config_beside_an_import_is_named(
    content: str, documents: Artifact, tmp_path: Path
) -> None:
    train_bpe(["a b"], 300).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json\) is not (JSON|a JSON object)"):
        train(documents, tmp_path / "out", kind="import", path=tmp_path)


def test_names_of_special_tokens_that_are_no_text_are_not_taken(
    documents: Artifact, tmp_path: Path
) -> None:
    train_bpe(["a b"], 300).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"eos_token": 5, "pad_token": {"content": null}}'
    )
    given = import_tokenizer(tmp_path, None, None)
    assert (given.eos_token, given.pad_token) == ("<|endoftext|>", "<|pad|>")
