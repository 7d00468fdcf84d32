"""Refuses settings of a run that do not go together. Standard library only."""
