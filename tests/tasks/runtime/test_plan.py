"""Plans: what would run and why, known from keys alone."""

import shutil
from pathlib import Path

import pytest

from llm_core.config import ConfigError
from tasks.runtime.artifact import Artifact
from tasks.runtime.graph import STAGES, ancestors, descendants
from tasks.runtime.inputs import InputDigests
from tasks.runtime.keys import digest
from tasks.runtime.plan import Plan, make_plan
from tasks.runtime.store import Node, Store


def nodes(target: str = "report", **settings: int) -> dict[str, Node]:
    """Nodes of the real graph with a config of one number per stage."""
    made: dict[str, Node] = {}
    for name in ancestors(target):
        config = {"x": settings.get(name, 0)}
        identity = {
            "stage": name,
            "code": "c",
            "config": config,
            "parents": {p: made[p].key for p in STAGES[name].parents},
        }
        made[name] = Node(name, digest(identity), digest(config), identity, config)
    return made


def fill(store: Store, made: dict[str, Node]) -> None:
    for n in made.values():
        if store.find(n.stage, n.key) is None:
            with store.hold(n, print) as out:
                (out / "f").write_text(n.stage)
                store.publish(n, Artifact(out, n.stage), 0, 0, "2026-01-01")


def whys(plan: Plan) -> dict[str, str]:
    return {s.node.stage: s.why for s in plan.steps if s.runs}


def test_empty_store_runs_everything_in_an_order_where_parents_come_first(tmp_path: Path) -> None:
    plan = make_plan(Store(tmp_path), nodes(), "report")
    order = [s.node.stage for s in plan.steps]
    assert set(whys(plan).values()) == {"building"} and len(order) == len(STAGES)
    assert all(order.index(p) < order.index(s) for s in order for p in STAGES[s].parents)


def test_finished_run_is_cached_whole(tmp_path: Path) -> None:
    fill(Store(tmp_path), nodes())
    assert whys(make_plan(Store(tmp_path), nodes(), "report")) == {}


def test_changed_setting_reruns_its_stage_and_what_follows_only(tmp_path: Path) -> None:
    fill(Store(tmp_path), nodes())
    plan = make_plan(Store(tmp_path), nodes(train=7), "report")
    assert whys(plan).keys() == {"train", "evaluate", "bench", "report"} == descendants("train")
    last = nodes()["train"].key
    assert plan["train"].why == f"changed x: 0 → 7 (against {last})"
    assert plan["evaluate"].why == "after train"


def test_unfinished_work_that_nobody_holds_is_called_interrupted(tmp_path: Path) -> None:
    store, made = Store(tmp_path), nodes()
    with store.hold(made["ingest"], print):
        assert make_plan(store, made, "report")["ingest"].why == "building", "it is being made"
    assert make_plan(store, made, "report")["ingest"].why == "interrupted"
    fill(store, made)
    changed = nodes(train=7)
    with store.hold(changed["train"], print):
        pass
    why = make_plan(store, changed, "report")["train"].why
    assert why.startswith("interrupted; changed x: 0 → 7 (against ")


def test_deleted_intermediate_is_rebuilt_only_if_something_needs_it(tmp_path: Path) -> None:
    store, made = Store(tmp_path), nodes()
    fill(store, made)
    shutil.rmtree(store.path("quality", made["quality"].key))
    # The report takes quality's artifact itself, so it is needed exactly when the report runs.
    assert whys(make_plan(store, made, "report")) == {}
    shutil.rmtree(store.path("report", made["report"].key))
    assert whys(make_plan(store, made, "report")).keys() == {"quality", "report"}


def test_damaged_artifact_is_rebuilt_and_said_so(tmp_path: Path) -> None:
    store, made = Store(tmp_path), nodes()
    fill(store, made)
    (store.path("report", made["report"].key) / "f").unlink()
    assert whys(make_plan(store, made, "report")) == {"report": "damaged: f is gone"}


def spoil(store: Store, made: dict[str, Node], *stages: str) -> None:
    for name in stages:
        (store.path(name, made[name].key) / "f").write_text(name.upper())


def test_damage_is_rebuilt_also_where_nothing_would_read_it(tmp_path: Path) -> None:
    store, made = Store(tmp_path), nodes()
    fill(store, made)
    spoil(store, made, "ingest", "train")
    another = "damaged: f has changed content"
    assert whys(make_plan(store, made, "report")) == {"ingest": another, "train": another}
    assert whys(make_plan(store, made, "report", start="tokenizer")) == {"train": another}
    assert whys(make_plan(store, made, "report", only="dedup")) == {}


def test_a_measurement_that_is_made_again_takes_the_page_that_shows_it_along(
    tmp_path: Path,
) -> None:
    store, made = Store(tmp_path), nodes()
    fill(store, made)
    spoil(store, made, "bench")
    assert whys(make_plan(store, made, "report"))["report"] == "after bench, measured again"


def test_damage_that_start_leaves_out_is_refused_where_it_is_read(tmp_path: Path) -> None:
    store, made = Store(tmp_path), nodes()
    fill(store, made)
    spoil(store, made, "documents")
    with pytest.raises(
        ConfigError,
        match=(
            r"documents \w+ is damaged: f has changed content, and start/only leave it out; run"
            r" with"
        ),
    ):
        make_plan(store, nodes(tokenizer=1), "report", start="tokenizer")


@pytest.mark.parametrize("stage", [name for name in STAGES if name != "report"])
def test_what_the_report_takes_is_checked_like_everything_else(stage: str, tmp_path: Path) -> None:
    store, made = Store(tmp_path), nodes()
    fill(store, made)
    spoil(store, made, stage)
    assert stage in whys(make_plan(store, nodes(report=1), "report"))


def test_forced_stage_runs_and_the_report_with_it(tmp_path: Path) -> None:
    store, made = Store(tmp_path), nodes()
    fill(store, made)
    assert whys(make_plan(store, made, "report", force=["bench"])) == {
        "bench": "forced",
        "report": "forced",
    }


def test_start_refuses_to_run_what_comes_before(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(
        ConfigError, match="shards is not in the store, and start/only leave it out"
    ):
        make_plan(store, nodes(), "report", start="train")
    fill(store, nodes())
    assert whys(
        make_plan(store, nodes(optim=1, train=1), "report", start="train")
    ).keys() == descendants("train")


def test_only_runs_one_stage(tmp_path: Path) -> None:
    store = Store(tmp_path)
    fill(store, nodes())
    plan = make_plan(store, nodes(dedup=1), "report", only="dedup")
    assert plan.target == "dedup" and whys(plan).keys() == {"dedup"}


@pytest.mark.parametrize("argument", [{"start": "trian"}, {"only": "trian"}, {"force": ["trian"]}])
def test_unknown_stage_names_the_nearest(argument: dict, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trian is not a stage; did you mean train"):
        make_plan(Store(tmp_path), nodes(), "report", **argument)


def test_stage_that_is_not_on_the_way_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bench is not a step towards shards"):
        make_plan(Store(tmp_path), nodes("shards"), "shards", force=["bench"])


def test_input_digests_follow_content_and_survive_a_torn_memory(tmp_path: Path) -> None:
    source, memory = tmp_path / "a.jsonl", tmp_path / "memory.json"
    source.write_text("one")
    first = InputDigests(memory).of({"a.jsonl": source})
    assert InputDigests(memory).of({"a.jsonl": source}) == first
    memory.write_text("{")
    assert InputDigests(memory).of({"a.jsonl": source}) == first
    source.write_text("two!")
    assert InputDigests(memory).of({"a.jsonl": source}) != first
