"""What runs after what: Prefect flows, the Hydra entry point, the MLflow tracker."""
