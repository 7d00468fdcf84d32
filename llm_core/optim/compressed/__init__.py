"""Updates from gradients that are summed in fewer bytes."""
