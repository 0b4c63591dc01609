"""vLLM's options: sampling parameters and the speculative config, with their checks."""
