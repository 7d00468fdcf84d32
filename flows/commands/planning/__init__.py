"""Plans beyond one training step: the tokens of a corpus, answering with a model, scaling laws."""
