"""Sends runs to MLflow. Read `runs.py`, `journal.py` (what is sent) and `shipping.py` (when)."""
