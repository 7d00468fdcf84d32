"""Runs one model in several processes, each of which holds a part of every layer.

Read `shares.py` (who holds what), `layers.py` (what is exchanged), `team.py` (how the processes
start and end), `led.py` (rank 0, which the rest of the program sees as a model), `follow.py` (the
others), `messages.py` (what goes between them).
"""
