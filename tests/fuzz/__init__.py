"""Fuzzes whatever reads files of others: readers, importers, tokenizers, fastText, checkpoints,
artifacts and model folders.

Sound files are changed where it hurts (changes.py) and given to the code that a user gives them to
(targets.py), each target in a process with a limit of memory and a clock (worker.py). `python -m
tests.fuzz`, or `make fuzz`, runs all targets.
"""
