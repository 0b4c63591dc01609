"""Text and token ids: tokenizers, streaming detokenization, chat templates, vocabularies."""
