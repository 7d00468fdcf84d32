"""Shows the tokens of a training against rules, published fits, and what the corpus has."""

from __future__ import annotations

from typing import Any

from flows.console import table
from flows.records import read_records
from flows.run import decide
from flows.run_config import RunConfig
from llm_core.config import ConfigError, to_plain
from llm_core.planner.budget import MAX_EPOCHS, Corpus, TokenBudget, token_budget
from llm_core.planner.scaling import TOKENS_PER_WEIGHT
from llm_core.planner.step import Work
from llm_core.printing import percent


def known_corpus(config: RunConfig) -> tuple[Corpus | None, str]:
    """(tokens of the training split, or why they are not known). From the shards of these settings,
    else from those of the last run of the same source."""
    if config.shared is None and not config.store.is_dir():
        return None, f"{config.store} has no run"
    store = config.open_store()
    records = read_records(store)
    if not records:
        return None, f"{config.store} has no run"
    if config.source.unfetched():
        return None, "its files are not here yet"
    try:
        _, plan = decide(config, "shards")
    except ConfigError as error:
        return None, str(error)
    places = {plan["shards"].node.key: "these settings"}
    ingest = plan["ingest"].node.key
    for record in records:
        if record.stages.get("ingest") == ingest and "shards" in record.stages:
            places.setdefault(record.stages["shards"], f"run {record.run_id}, of other settings")
    for key, source in places.items():
        if (shards := store.find("shards", key)) is not None:
            return Corpus(shards.metrics["splits"]["train"]["tokens"], source), ""
    return None, "no earlier run has tokens of this source"


def budget_plan(
    work: Work, corpus: Corpus | None, unknown: str, inference_tokens: float
) -> tuple[str, dict[str, Any]]:
    """(text for a terminal, the same as plain values). unknown: why there is no corpus; empty where
    none was named."""
    weights = work.model.num_parameters(active=True)
    found = token_budget(weights, work.train.total_tokens, corpus, inference_tokens)
    return _shown(found, weights, unknown), to_plain(found)


def _shown(found: TokenBudget, weights: int, unknown: str) -> str:
    fitted = f"{amount(found.fitted_low)}…{amount(found.fitted_high)}"
    values = [
        ("this training", found.num_tokens, ""),
        (f"the rule of {TOKENS_PER_WEIGHT:.0f} a weight", found.rule_tokens, ""),
        ("fit of Besiroglu et al. (2024)", found.fitted_tokens, fitted),
    ]
    if found.corpus:
        values.append((f"the corpus, by {found.corpus.source}", found.corpus.num_tokens, ""))
    rows = [
        (name, amount(tokens), f"{tokens / weights:,.2f}", interval)
        for name, tokens, interval in values
    ]
    lines = [table(("tokens", "", "a weight", "95 %"), rows)]
    if unknown:
        lines.append(f"tokens of the corpus are not known: {unknown}")
    if found.epochs is not None and found.effective_tokens is not None:
        worth = f"{found.epochs:,.2f} epochs"
        if found.epochs > 1:
            worth += (
                f", worth {amount(found.effective_tokens)} new tokens (Muennighoff et al., 2023)"
            )
        if found.epochs > MAX_EPOCHS:
            worth += f"; more than {MAX_EPOCHS:.0f} may do harm"
        lines.append(worth)
    lines += [
        f"as good after {each.inference_tokens:.3g} tokens of answers:"
        f" {amount(each.num_weights)} weights on {amount(each.num_tokens)} tokens, which"
        f" saves {percent(each.saved_frac)} of all work (Sardana et al., 2024, by the fit"
        f" {each.law})"
        for each in found.over_trained
    ]
    return "\n".join(lines)


def amount(value: float) -> str:
    """A count of weights or tokens, in the letters of the field: 8.030 B."""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= scale:
            return f"{value / scale:,.3f} {letter}"
    return f"{value:,.0f}"
