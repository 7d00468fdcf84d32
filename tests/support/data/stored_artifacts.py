"""Publishes a small artifact to a store."""

from tasks.runtime.artifact import Artifact
from tasks.runtime.store import Node, Store


def make_node(key: str = "k1") -> Node:
    return Node("ingest", key, "p1", {"stage": "ingest", "config": {"x": 1}}, {"x": 1})


def publish(store: Store, node: Node, text: str = "hello") -> Artifact:
    with store.hold(node, print) as out:
        (out / "data").mkdir()
        (out / "data" / "a.txt").write_text(text)
        return store.publish(
            node,
            Artifact(out, "ingest", {"read": 1, "kept": 1}, {"m": 0.5}),
            1.0,
            0.5,
            "2026-01-01",
        )
