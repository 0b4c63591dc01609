"""The engine: ``LLM`` offline, ``Service`` for concurrent requests, and what both run on."""
