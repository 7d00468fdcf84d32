"""The command line, Prefect flows and the services around them.

Read `pipeline.py`, then `run.py`, then `cli.py`.
"""
