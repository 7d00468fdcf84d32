"""Evaluates a trained model, generates text and rounds weights. Read `stage.py` and `held_out.py`;
then `suites.py`, `prompts.py`, `suite_scores.py` and `suite_results.py`."""
