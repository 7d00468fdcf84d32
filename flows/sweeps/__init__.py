"""Sweeps: one flow at several points. `config` says what to vary and how to judge, `points` lists
or searches values, `sweep` runs the points through a launcher (`launch`, `job`), `search` has
Optuna choose them, `pruning` stops those that fall behind, `results` shows how they ended."""
