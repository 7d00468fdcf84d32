"""Documents of training are parted at random places and give their text back."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_core.config import ConfigError, key_config
from llm_core.data.config import DataConfig
from llm_core.data.shards import open_shards
from tasks.runtime.artifact import Artifact
from tasks.runtime.stage import StageFailure
from tasks.shards.config import ShardsConfig
from tasks.shards.fill_in_middle import CONTROLS, FillInMiddleConfig
from tasks.shards.stage import write_shards
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.encoder import Tokenizer, load_tokenizer
from tasks.tokenizer.stage import train_tokenizer
from tests.support.data.make_artifacts import empty_dir
from tests.support.data.sample_documents import sample_texts, stored, write_documents

NUM, HELD_OUT = 200, 10


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("documents")
    texts = [f"{number} é 👩‍🚀 {text}" for number, text in enumerate(sample_texts(NUM, 200))]
    return write_documents(folder, texts, validation_every=HELD_OUT)


@pytest.fixture(scope="module")
def tokenizer(documents: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    config = TokenizerConfig("bpe", 500, special_tokens=CONTROLS[0])
    return train_tokenizer(documents, tmp_path_factory.mktemp("tokenizer"), config)


def write(
    documents: Artifact, tokenizer: Artifact, out_dir: Path, **config: object
) -> dict[bytes, list[int]]:
    """{id: tokens} of the training documents."""
    gaps = FillInMiddleConfig(**config)  # type: ignore[arg-type]
    write_shards(documents, tokenizer, empty_dir(out_dir), ShardsConfig(fill_in_middle=gaps))
    return {d.id: d.tokens.tolist() for d in open_shards(out_dir, "train").documents()}


def parts_of(tokens: list[int], model: Tokenizer) -> tuple[str, tuple[str, str, str]] | None:
    """(form, (prefix, middle, suffix)); None for a document in its own order. In the form SPM the
    prefix holds the middle too."""
    prefix, suffix, middle = (model.id_of(token) for token in CONTROLS[0])
    if prefix not in tokens:
        return None
    assert tokens[0] == prefix and tokens[-1] == model.eos_id
    s, m = tokens.index(suffix), tokens.index(middle)
    before, after, last = (
        model.decode(tokens[a:b]) for a, b in ((1, s), (s + 1, m), (m + 1, len(tokens)))
    )
    return ("SPM", (last, "", after)) if s == 1 else ("PSM", (before, last, after))


def test_parted_documents_give_their_text_back(
    documents: Artifact, tokenizer: Artifact, tmp_path: Path
) -> None:
    model, rows = load_tokenizer(tokenizer.path), stored(documents)
    found = write(documents, tokenizer, tmp_path / "out", rate=1.0)
    forms, places = [], set()
    for id, tokens in found.items():
        parted = parts_of(tokens, model)
        assert parted is not None and "".join(parted[1]) == rows[id]["text"]
        forms.append(parted[0])
        places.add(len(parted[1][2]))
    assert len(forms) == NUM - NUM // HELD_OUT and len(places) > 50
    assert 0.35 < forms.count("SPM") / len(forms) < 0.65


@pytest.mark.parametrize(("spm_frac", "form"), [(0.0, "PSM"), (1.0, "SPM")])
def test_the_form_is_the_one_asked_for(
    documents: Artifact, tokenizer: Artifact, tmp_path: Path, spm_frac: float, form: str
) -> None:
    model = load_tokenizer(tokenizer.path)
    found = write(documents, tokenizer, tmp_path / "out", rate=1.0, spm_frac=spm_frac)
    # A prefix without text looks like the other form.
    forms = [parted[0] for t in found.values() if (parted := parts_of(t, model)) is not None]
    assert forms.count(form) >= 0.97 * len(forms)


def test_a_rate_parts_that_share_of_the_chosen_sources(
    documents: Artifact, tokenizer: Artifact, tmp_path: Path
) -> None:
    model, rows = load_tokenizer(tokenizer.path), stored(documents)
    found = write(documents, tokenizer, tmp_path / "out", rate=0.5, sources=("source1",))
    parted = {id for id, tokens in found.items() if parts_of(tokens, model)}
    mine = [id for id in found if rows[id]["source"] == "source1"]
    assert parted <= set(mine) and 0.3 < len(parted) / len(mine) < 0.7
    whole = write(documents, tokenizer, tmp_path / "whole")
    assert all(found[id] == whole[id] for id in found if id not in parted)


def test_validation_is_read_as_it_is(
    documents: Artifact, tokenizer: Artifact, tmp_path: Path
) -> None:
    for name, rate in (("parted", 1.0), ("whole", 0.0)):
        write(documents, tokenizer, tmp_path / name, rate=rate)
    ours, theirs = (
        [d.tokens.tolist() for d in open_shards(tmp_path / name, "validation").documents()]
        for name in ("parted", "whole")
    )
    assert ours == theirs


def test_a_tokenizer_without_the_control_tokens_says_how_to_get_them(
    documents: Artifact, tmp_path: Path
) -> None:
    plain = train_tokenizer(documents, empty_dir(tmp_path / "t"), TokenizerConfig("bpe", 500))
    with pytest.raises(StageFailure, match=r"tokenizer\.special_tokens"):
        write(documents, plain, tmp_path / "out", rate=0.5)


def test_settings_that_came_later_leave_keys_as_they_were() -> None:
    assert "fill_in_middle" not in key_config(ShardsConfig())
    assert "loss_on" not in key_config(DataConfig())
    some = ShardsConfig(fill_in_middle=FillInMiddleConfig(rate=0.5))
    assert key_config(some)["fill_in_middle"]["rate"] == 0.5
    assert key_config(DataConfig(loss_on="assistant"))["loss_on"] == "assistant"


def test_tokens_of_another_engine_have_no_middle_to_fill() -> None:
    with pytest.raises(ConfigError, match=r"fill_in_middle\.rate \(0\.5\) is for form=documents"):
        ShardsConfig(form="megatron", path=Path("x"), fill_in_middle=FillInMiddleConfig(rate=0.5))
