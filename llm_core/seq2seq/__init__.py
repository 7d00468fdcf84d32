"""Encoder–decoder models: T5 and the original Transformer, their data and their decoding.

Read config, layers, model; then batch, denoising and pairs (data), decoding, and t5_folder (Hugging
Face). A library: `textmill train` trains decoders alone (docs/decisions/0024).
"""
