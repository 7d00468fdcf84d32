"""Fuzzes whatever reads files of others.

Readers, importers, tokenizers, fastText, checkpoints, artifacts and model folders. Sound files are
changed where it hurts (changes.py) and given to the code that a user gives them to (targets.py).
One process imports that code and forks, so that a target starts in a tenth of a second. Each fork
has a limit of memory and a clock (worker.py), and two run at once (campaign.py).
`python -m tests.fuzz`, or `make fuzz`, runs all targets.
"""
