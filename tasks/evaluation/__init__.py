"""Evaluates a trained model, generates text and rounds weights. Read `stage.py`."""
