"""Training: the bundled language models and drafting heads, or your own."""
