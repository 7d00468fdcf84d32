"""Weights in 8 or 4 bits: `formats` rounds and restores them, `layers` computes with them, on CPUs
by `on_cpu` and on GPUs by `llm_core.kernels.quantized_triton`; `model` puts them into a model."""
