"""vLLM's own server tests, run against our server: ``python -m tests.server.peer SDIST``."""
