"""Evaluates a trained model, generates text and measures speed. Read `stage.py` and `held_out.py`;
`suites.py`, `prompts.py`, `suite_scores.py` and `suite_results.py`; then `bench.py`."""
