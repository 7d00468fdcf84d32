"""The trainer process.

Read `train.py`, `trainer.py`, `step.py`; settings are in `config.py` and `run_config.py`.
"""
