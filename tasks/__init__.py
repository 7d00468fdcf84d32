"""Stages: one module each, a plain function from artifact to artifact."""
