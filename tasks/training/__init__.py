"""Runs the trainer in processes of its own and follows its progress. Read `stage.py`."""
