"""Defines the loss of pairs of answers, of which one is preferred (DPO): `config`, then `pairs`."""
