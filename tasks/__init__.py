"""Stages: one folder each, with the stage's function in `stage.py`. Read `runtime/graph.py` for
their order."""
