"""Trains on pairs of answers, of which one is preferred (DPO). Begin with `config`, then `pairs`;
`references` computes what the model is compared with."""
