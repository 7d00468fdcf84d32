"""Explains what happened to one document, and replays quality rules with other thresholds."""
