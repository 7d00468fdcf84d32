"""Plans: the stages of a flow, a training, its tokens, inference, scaling laws."""
