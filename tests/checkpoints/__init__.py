"""Small checkpoints of every kind, drawn from a seed, with real acceptance and no training."""
