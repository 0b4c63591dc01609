"""The HTTP server: vLLM's OpenAI-compatible API over ``engine.service``."""
