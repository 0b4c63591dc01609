"""Compare specjax with a real vLLM, asked live or remembered."""
