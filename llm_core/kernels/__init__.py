"""Triton kernels, and packages that offer others. `llm_core/model/operations.py` chooses."""
