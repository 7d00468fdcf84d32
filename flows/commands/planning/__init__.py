"""Plans: the stages of a flow, a training, its tokens, answering with a model, scaling laws."""
