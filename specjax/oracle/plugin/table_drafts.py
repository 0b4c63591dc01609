"""Feed vLLM drafts that were computed elsewhere, through its ``custom_class`` plug-in point."""

from typing import Any

TABLE: list = []  # [committed tokens, draft] pairs; the driver fills it before vLLM starts


class TableDrafts:
    """Propose, after exactly these committed tokens, exactly this draft; else nothing."""

    def __init__(self, vllm_config):
        self.table = {tuple(text): draft for text, draft in TABLE}

    def load_model(self, *args, **kwargs):
        """Do nothing: there is no model."""

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
        **rest: Any,
    ) -> list[list[int]]:
        """Look every row's text up."""
        drafts = []
        for row, sampled in enumerate(sampled_token_ids):
            text = tuple(token_ids_cpu[row, : num_tokens_no_spec[row]].tolist())
            drafts.append(self.table.get(text, []) if len(sampled) else [])
        return drafts
