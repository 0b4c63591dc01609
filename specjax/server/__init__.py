"""The server: OpenAI's protocol in vLLM's dialect, over ``engine.service``."""
