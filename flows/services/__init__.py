"""Local services: Prefect server and worker, MLflow. Read `local.py`, then `access.py`."""
