"""Compares a run with the runs before it over the same source: `config`, then `series` (which runs
belong together, and the tokenizer they share), then `changes` (what differs from the run
before)."""
