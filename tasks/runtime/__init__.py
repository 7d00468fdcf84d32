"""Runs stages: graph, plan, keys, artifact store, parts and sandboxes.

Read `graph.py`, `plan.py`, `execute.py`, `store.py`.
"""
