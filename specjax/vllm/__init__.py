"""Drafters inside vLLM: a class for its ``custom_class``, which drafts from text by our methods."""

from specjax.vllm.proposer import Proposer

__all__ = ["Proposer"]
