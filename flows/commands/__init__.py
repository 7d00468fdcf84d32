"""What `textmill` can do. `table.py` lists it; read that, then `command.py` and `runs.py`."""
