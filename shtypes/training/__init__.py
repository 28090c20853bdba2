"""Training: optimizers."""
