"""What the help on settings says: every field of every config, and the file that lists them."""

import dataclasses
import typing
from pathlib import Path

import pytest

from flows.cli import main
from flows.commands.settings_help import (
    REQUIRED,
    Setting,
    help_text,
    overview,
    reference,
    settings,
)
from flows.conf_files import CONF_DIR, choices, groups
from flows.run_config import RunConfig
from llm_core.config import ConfigError

REFERENCE = CONF_DIR.parent / "docs" / "reference" / "settings.md"


def test_every_field_of_every_group_is_a_setting_with_a_meaning() -> None:
    known = settings()
    for group, config in typing.get_type_hints(RunConfig).items():
        fields = dataclasses.fields(config) if dataclasses.is_dataclass(config) else ()
        assert {group, *(f"{group}.{field.name}" for field in fields)} <= known.keys()
    assert {
        "dedup.cuts.pieces",
        "optim.groups[].match",
        "source.sources.NAME.paths",
    } <= known.keys()
    assert [name for name, setting in known.items() if not setting.meaning] == []


def test_help_on_any_setting_gives_type_default_and_meaning() -> None:
    for name, setting in settings().items():
        text = help_text(name)
        assert text.startswith(f"{name}\n") and setting.meaning.split()[-1] in text
        expected = ["\nsettings"] if setting.is_group else ["\n  type  ", "\n  default  "]
        assert all(words in text for words in expected)


def test_help_names_type_unit_default_and_values_of_choices() -> None:
    text = help_text("train.num_steps")
    assert "whole number" in text and "unit     steps" in text and "default  400" in text
    assert "given by train=long: 2000" in text
    assert settings()["contamination.suites.NAME.path"].default is REQUIRED


def test_names_of_the_user_stand_where_the_help_has_name() -> None:
    web, first = help_text("source.sources.web.paths"), help_text("optim.groups[0].match")
    assert web.endswith(help_text("source.sources.NAME.paths").partition("\n")[2])
    assert first.endswith(help_text("optim.groups[].match").partition("\n")[2])


def test_help_on_a_mapping_or_list_of_groups_names_their_settings() -> None:
    assert "source.sources.NAME.text_column" in help_text("source.sources")
    assert "optim.groups[].lr_factor" in help_text("optim.groups")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("optim.schedul", "optim.schedule"),
        ("seqlen", "train.seq_len"),
        ("lr", "scores.classifiers.NAME.lr or optim.lr"),
        ("vocab_size", "tokenizer.vocab_size or model.vocab_size"),
        ("dedupe", "dedup"),
    ],
)
def test_unknown_setting_is_one_line_that_names_the_nearest(name: str, expected: str) -> None:
    with pytest.raises(
        ConfigError, match=f"{name} is not a known setting; did you mean {expected}"
    ):
        help_text(name)


@pytest.mark.parametrize("group", groups())
def test_every_choice_has_a_line_in_the_overview_and_in_the_help_of_its_group(group: str) -> None:
    for text in (overview(), help_text(group)):
        lines = [line.lstrip(" *").split(maxsplit=1) for line in text.splitlines()]
        for choice in choices(group):
            assert any(words[0] == choice and len(words) == 2 for words in lines if words)


def test_help_is_a_command_and_an_option_of_flows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "quality.thresholds"]) == 0
    assert capsys.readouterr().out == help_text("quality.thresholds") + "\n"
    assert main(["run", "--help"]) == 0
    assert capsys.readouterr().out == overview() + "\n"
    assert main(["help", "nonesuch"]) == main(["help", "optim.lr", "nonesuch"]) == 2


def test_help_on_an_entry_of_a_mapping_is_that_of_the_mapping() -> None:
    entry, mapping = (
        help_text(name) for name in ("quality.thresholds.TOO_FEW_WORDS", "quality.thresholds")
    )
    assert entry.partition("\n")[2] == mapping.partition("\n")[2]
    with pytest.raises(ConfigError, match="train.num_steps.x is not a known setting"):
        help_text("train.num_steps.x")


def test_help_explains_several_settings_in_one_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "optim.lr", "train.num_steps"]) == 0
    both = help_text("optim.lr"), help_text("train.num_steps")
    assert capsys.readouterr().out == "\n\n".join(both) + "\n"


def test_units_come_from_names_of_numbers_alone() -> None:
    def unit(name: str, hint: object) -> str | None:
        return Setting(name, hint, None, "").unit

    assert unit("a.timeout_s", float) == "seconds"
    assert unit("a.max_tokens", int | None) == unit("a.num_tokens", tuple[int, ...]) == "tokens"
    assert unit("a.special_tokens", tuple[str, ...]) is unit("a.seed", int) is None


def test_reference_of_settings_is_up_to_date() -> None:
    assert REFERENCE.read_text("utf-8") == reference() + "\n", "run `make settings`"


def test_reference_is_a_table_of_four_cells_a_row() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    cells = [row.count("|") for row in rows]
    assert set(cells) == {3, 5} and cells.count(5) > 200


def test_no_choice_of_a_group_repeats_a_default() -> None:
    import yaml

    from llm_core.config import plain_defaults

    def repeated(given: dict, defaults: dict, place: str) -> list[str]:
        found = []
        for name, value in given.items():
            if isinstance(value, dict) and isinstance(defaults.get(name), dict) and value:
                found += repeated(value, defaults[name], f"{place}.{name}")
            elif name in defaults and value == defaults[name]:
                found.append(f"{place}.{name}")
        return found

    defaults = plain_defaults(RunConfig)
    files = [file for file in Path(CONF_DIR).glob("*/*.yaml") if file.parent.name in defaults]
    assert len(files) > 50
    for file in files:
        given = yaml.safe_load(file.read_text("utf-8"))
        assert repeated(given, defaults[file.parent.name], str(file)) == []
    primary = yaml.safe_load((CONF_DIR / "config.yaml").read_text("utf-8"))
    assert repeated(primary, defaults, "config.yaml") == []
