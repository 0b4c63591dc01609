"""Checkpoints in Hugging Face's format: configs, weights and heads, read, converted, saved."""
