"""Chooses the next token from logits. Read sampling, edits, choosing, streams, scores."""
