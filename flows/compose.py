"""From command-line overrides to one checked configuration: the only module beside those of
`flows.sweeps` that meets Hydra and OmegaConf.

Hydra composes `conf/`, the result becomes plain values, and `llm_core.config.build` makes frozen
dataclasses of them; nothing behind this module sees an OmegaConf object. Hydra's own messages span
lines and name its insides, so each becomes one ConfigError: what is wrong, the rule, the nearest
known names.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from flows.conf_files import CONF_DIR, choices, groups
from flows.run_config import RunConfig
from llm_core.config import ConfigError, build, nearest, plain_defaults
from llm_core.planner.hardware import read_record
from llm_core.printing import one_line
from tasks.runtime.code import ROOT
from tasks.runtime.keys import digest

STORES = "data/stores"
"""Folder of the copies of shared stores."""
# Hydra keeps its state in a process-wide singleton.
_COMPOSE_LOCK = threading.Lock()

_APPEND = re.compile(r"^([\w.]+)\+=")
"""`key+=value` appends to a list. Hydra's grammar has no such override."""


def compose(
    overrides: Sequence[str] = (), conf_dir: Path = CONF_DIR, lays_out: bool = True
) -> RunConfig:
    """The checked configuration that `overrides` describe. Raises ConfigError, always of one
    line.

    lays_out: a layout left to the planner (parallel=auto) is chosen.
    """
    try:
        config = build(RunConfig, _compose_plain(overrides, conf_dir))
        return config.laid_out() if lays_out else config
    except ConfigError as error:
        raise ConfigError(one_line(error)) from error


@contextmanager
def hydra_over(conf_dir: Path = CONF_DIR) -> Iterator[Any]:
    """Hydra's application over a folder of configuration, alone in this process within the
    block."""
    # The embedded corpus lies beside the code, wherever a run is started.
    OmegaConf.register_new_resolver("tree", lambda path: str(ROOT / path), replace=True)
    with _COMPOSE_LOCK:
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(conf_dir), job_name="textmill", version_base="1.3"):
            yield GlobalHydra.instance().hydra


@contextmanager
def in_one_line(overrides: Sequence[str], conf_dir: Path = CONF_DIR) -> Iterator[None]:
    """What Hydra raises about `overrides`, as one ConfigError of one line."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise _explain(
            error, [parse_override(override) for override in overrides], conf_dir
        ) from error


def settable(overrides: Sequence[str], conf_dir: Path = CONF_DIR) -> list[str]:
    """Overrides that set any field, also one whose YAML leaves it to its default; unknown ones are
    found by `build`. Those that append are left out: only `compose` knows them."""
    known = set(groups(conf_dir))
    result = []
    for text in overrides:
        if is_append(text):
            continue
        override = parse_override(text)
        name = override.key_or_group
        plain = (
            override.type is OverrideType.CHANGE
            and name not in known
            and not name.startswith(("hydra.", "hydra/"))
        )
        result.append(f"++{text}" if plain else text)
    return result


def as_yaml(config: RunConfig, package: str = "") -> str:
    """Every setting with its value, or those below `package`, as an overlay: saved in `conf/run/`,
    it composes to the same config. Raises ConfigError for a package that is not there."""
    values = config.resolved()
    for name in filter(None, package.split(".")):
        below = {one: value for one, value in values.items() if isinstance(value, dict)}
        if name not in below:
            raise ConfigError(f"{package} is not a group of settings; {nearest(name, list(below))}")
        values = below[name]
    return f"# @package {package or '_global_'}\n{OmegaConf.to_yaml(_literal(values))}"


def store_full_config(conf_dir: Path = CONF_DIR) -> str:
    """The name under which Hydra has `config.yaml` laid over the default of every field, so that
    its completion and `--info` know fields that no YAML names."""
    from hydra.core.config_store import ConfigStore

    primary = OmegaConf.load(conf_dir / "config.yaml")
    chosen = [entry for entry in primary.pop("defaults") if entry != "_self_"]
    fields = OmegaConf.merge(plain_defaults(RunConfig), primary)
    # Before the choices, which hold more than defaults.
    fields["defaults"] = ["_self_", *chosen]
    ConfigStore.instance().store("full_config", fields)
    return "full_config"


def _compose_plain(overrides: Sequence[str], conf_dir: Path) -> dict[str, Any]:
    if not (conf_dir / "config.yaml").exists():
        raise ConfigError(f"{conf_dir / 'config.yaml'} is missing; install textmill again")
    parsed = [parse_override(override) for override in overrides]
    for override in parsed:
        if override.is_sweep_override():
            raise ConfigError(
                f"{override.input_line} gives several values; add -m to run each, or quote a list:"
                " key='[a,b]'"
            )
        name, is_choice = override.key_or_group, isinstance(override.value(), (str, list))
        if name in groups(conf_dir) and not (is_choice or override.is_delete()):
            given = (override.input_line or "").partition("=")[2]
            raise ConfigError(
                f"{name} ({given}) is not a choice; {nearest(given, choices(name, conf_dir))}"
            )
    with hydra_over(conf_dir), in_one_line(overrides, conf_dir):
        config = hydra_compose("config", overrides=settable(overrides, conf_dir))
        # The defaults too, so that `${group.field}` may name any field; but not those of a group
        # that was removed.
        fields = plain_defaults(RunConfig)
        lost = {name for name in groups(conf_dir) if name not in config}
        below = {name: value for name, value in fields.items() if name not in lost}
        given = _with_copy(OmegaConf.to_container(config))
        full = OmegaConf.create(_overlaid(below, given))
        if file := OmegaConf.select(full, "hardware.file"):
            below = _overlaid(below, {"hardware": read_record(Path(str(file)))})
            full = OmegaConf.create(_overlaid(below, given))
        for text in filter(is_append, overrides):
            _append(full, parse_override(text))
        return OmegaConf.to_container(full, resolve=True, throw_on_missing=True)  # type: ignore[return-value]


def _with_copy(values: Any) -> Any:
    """The same, with a store that is an address as `shared`, and the folder of its copy as
    `store`, which other settings refer to."""
    url = values.get("store")
    if not isinstance(url, str) or not url.startswith("s3://"):
        return values
    name = re.sub(r"[^a-z0-9.-]+", "-", url.partition("://")[2].lower()).strip("-")
    folder = f"{STORES}/{name}-{digest(url.rstrip('/'))[:8]}"
    return values | {"store": folder, "shared": url}


def _append(config: Any, override: Override) -> None:
    """Add the value of an override to a list: the entries of a list, or one entry."""
    key, value = override.key_or_group, override.value()
    known = OmegaConf.select(config, key)
    if known is not None and not OmegaConf.is_list(known):
        raise ConfigError(f"{key} is not a list, so nothing is appended; write {key}=value")
    entries = OmegaConf.to_container(known) if known is not None else []
    more = value if isinstance(value, list) else [value]
    # A name that is unknown is found by `build`.
    OmegaConf.update(config, key, [*entries, *more], force_add=True)


def _overlaid(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {name: _overlaid(below.get(name), value) for name, value in above.items()}


def _literal(value: Any) -> Any:
    """`value` with every `${` escaped, which OmegaConf would take for a reference."""
    if isinstance(value, dict):
        return {name: _literal(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_literal(one) for one in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    return value


def is_append(override: str) -> bool:
    return _APPEND.match(override) is not None


def parse_override(override: str) -> Override:
    """What an override says; one that appends is parsed as if it set the list."""
    try:
        return OverridesParser.create().parse_override(_APPEND.sub(r"\1=", override, count=1))
    except (HydraException, OmegaConfBaseException) as error:
        reason = one_line(error).split("See https")[0].rstrip(" .")
        raise ConfigError(
            f"{override!r} is not an override ({reason}); write key=value, and quote special"
            " characters: 'key=\"a=b\"'"
        ) from error


def _explain(error: Exception, overrides: Sequence[Override], conf_dir: Path) -> ConfigError:
    """One ConfigError for what Hydra found."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = str(error.missing_cfg_file).strip("/").rpartition("/")
        if error.options:
            more = "; textmill[sweep] has joblib and submitit" * (group == "hydra/launcher")
            return ConfigError(
                f"{group} ({choice}) is not a choice; {nearest(choice, list(error.options))}{more}"
            )
        return ConfigError(
            f"{error.missing_cfg_file} is not in {conf_dir}; groups: {', '.join(groups(conf_dir))}"
        )
    if isinstance(error, OverrideParseException):
        return ConfigError(
            f"{error.override!r} is not an override; write key=value ({one_line(error)})"
        )
    if isinstance(error, MissingMandatoryValue):
        return ConfigError(f"{error.full_key} has no value; set it, e.g. {error.full_key}=...")
    message = one_line(error)
    if match := re.search(r"Could not delete from config ?\S* ?'([^']+)'", message):
        key = match.group(1)
        return ConfigError(f"~{key} removes nothing: no file sets {key}; leave ~{key} out")
    if match := re.search(r"Could not override ?\S* ?'([^']+)'", message):
        key = match.group(1)
        return ConfigError(f"{key} is not a known setting; groups: {', '.join(groups(conf_dir))}")
    if match := re.match(r"Error merging override \+*(\S+)", message):
        return ConfigError(
            f"{match.group(1)} has a value of another kind; give a mapping '{{a: b}}' for a"
            " mapping, a list '[a]' for a list"
        )
    if match := re.match(r"Multiple values for (\w+)|(\w+) appears more than once", message):
        group = match[1] or match[2]
        return ConfigError(f"{group} has a choice already; write {group}=choice without +")
    given = ", ".join(o.input_line or "" for o in overrides)
    return ConfigError(message.split(" See ")[0] + (f" (given: {given})" if given else ""))


@functools.cache
def default_choices(conf_dir: Path = CONF_DIR) -> dict[str, str]:
    """The choice of each group where none is given."""
    entries = OmegaConf.load(conf_dir / "config.yaml")["defaults"]
    return {group: choice for one in entries if one != "_self_" for group, choice in one.items()}


@functools.cache
def choice_values(group: str, choice: str, conf_dir: Path = CONF_DIR) -> dict[str, Any]:
    """What the file of a choice gives, as it is written."""
    loaded = OmegaConf.load(conf_dir / group / f"{choice}.yaml")
    return OmegaConf.to_container(loaded)  # type: ignore[return-value]
