"""A real vLLM in an environment and process of its own, whose answers specjax is compared with."""
