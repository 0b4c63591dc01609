"""The oracle: a real vLLM in its own environment and its own process, asked with JSON."""
