"""Turn text into token ids and back, with the tokenizer of a Hugging Face folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from specjax.engine.text.chat import load_chat_templates, render_chat
from specjax.host.files import read_json_object

NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
GENERATION_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
QWEN2_PATTERN = (  # Qwen2's own word pattern; GPT-2 and OPT use the one built into ByteLevel
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokenizer:
    """Encodes, decodes and renders chats with a checkpoint's tokenizer.

    ``eos_ids`` are all the ids that end a text, the tokenizer's own first. ``special_tokens``
    maps "bos_token", "eos_token", ... to their text; ``special_ids`` are the ids that `decode`
    skips. ``chat_templates`` maps template names to jinja source; "default" is the usual one.
    """

    backend: tokenizers.Tokenizer
    eos_ids: tuple[int, ...]
    special_tokens: Mapping[str, str]
    special_ids: frozenset[int]
    chat_templates: Mapping[str, str]

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens, added ones included; a model may have more rows."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text. Special tokens written in it are recognized.

        Raises:
            ValueError: not a string, or it holds a lone surrogate, which no UTF-8 can carry.
        """
        if not isinstance(text, str):
            raise ValueError(f"the text to encode must be a string, got {text!r}.")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text holds a lone surrogate {text[error.start]!r} at position {error.start}: "
                "it is not valid Unicode."
            ) from None
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; incomplete UTF-8 shows as U+FFFD, unknown ids as ""."""
        return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """Return the text of one token, special or not; it is decoded once."""
        if token_id not in self._texts:
            self._texts[token_id] = self.decode([token_id], skip_special_tokens=False)
        return self._texts[token_id]

    @cached_property
    def _texts(self) -> dict[int, str]:
        return {}

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        chat_template: str | None = None,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """Render messages with the checkpoint's chat template (or `chat_template`, jinja source).

        Encode the result with ``add_special_tokens=False``: templates write their own. Content
        is a string or a list of {"type": "text", "text": ...} parts, joined by newlines.
        Other keywords reach the template (``tools``, ``enable_thinking``, ...). With
        ``continue_final_message`` the text ends with the last message, for the model to continue.

        Raises:
            ValueError: no template, a malformed message, or the template raises an exception.
        """
        if continue_final_message and add_generation_prompt:
            raise ValueError(
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
            )
        if chat_template is None:
            name = "tool_use" if kwargs.get("tools") else "default"
            chat_template = self.chat_templates.get(name, self.chat_templates.get("default"))
        if chat_template is None:
            raise ValueError(
                "this tokenizer has no chat template: use generate() with a plain prompt, pass "
                "chat_template=, or add chat_template.jinja to the model folder."
            )
        variables = {**self.special_tokens, "tools": None, "documents": None, **kwargs}
        variables["add_generation_prompt"] = add_generation_prompt
        return render_chat(chat_template, messages, variables, continue_final_message)


def has_tokenizer(folder: str | Path) -> bool:
    """Return whether a folder has the files that ``load_tokenizer`` needs."""
    files = Path(folder) / "tokenizer.json", Path(folder) / "vocab.json"
    return files[0].is_file() or (files[1].is_file() and (Path(folder) / "merges.txt").is_file())


def load_tokenizer(folder: str | Path, model: str | Path | None = None) -> Tokenizer:
    """Return a folder's tokenizer: tokenizer.json, or vocab.json and merges.txt (GPT-2, OPT, Qwen).

    ``model`` is the folder of the checkpoint, whose configs name further ids that end a text; by
    default the same folder.

    Raises:
        ValueError: none of these files, or a malformed one.
    """
    folder = Path(folder)
    config = _read_json(folder / "tokenizer_config.json")
    special_tokens = _special_tokens(folder, config)
    backend = _load_backend(folder, config)
    backend.no_truncation()
    backend.no_padding()
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    listed = config.get("additional_special_tokens") or []
    if not isinstance(listed, list):
        raise ValueError(f"additional_special_tokens in {folder} must be a list, got {listed!r}.")
    extra = [_content_of(token) for token in listed]
    missing = [text for text in (*special_tokens.values(), *extra) if text and text not in known]
    backend.add_special_tokens([AddedToken(text, special=True) for text in missing])
    bos = special_tokens.get("bos_token")
    if "add_bos_token" in config:
        if config["add_bos_token"] and bos is not None:
            pairs = [(bos, backend.token_to_id(bos))]
            backend.post_processor = processors.TemplateProcessing(f"{bos} $A", None, pairs)
        else:
            backend.post_processor = processors.TemplateProcessing("$A", None, [])
    decoder = backend.get_added_tokens_decoder()
    return Tokenizer(
        backend=backend,
        eos_ids=_eos_ids(Path(model or folder), backend, special_tokens.get("eos_token")),
        special_tokens=special_tokens,
        special_ids=frozenset(i for i, token in decoder.items() if token.special),
        chat_templates=load_chat_templates(folder, config),
    )


def load_generation_config(folder: str | Path) -> dict[str, Any]:
    """Return the sampling defaults of generation_config.json that are set there.

    Keys: temperature, top_p, top_k, min_p, repetition_penalty, eos_token_id (always a list).
    """
    config = _read_json(Path(folder) / "generation_config.json")
    found = {key: config[key] for key in GENERATION_DEFAULTS if config.get(key) is not None}
    if config.get("eos_token_id") is not None:
        found["eos_token_id"] = _id_list(config["eos_token_id"], "generation_config.json")
    return found


def _load_backend(folder: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    path, vocab, merges = (folder / n for n in ("tokenizer.json", "vocab.json", "merges.txt"))
    if not has_tokenizer(folder):
        raise ValueError(
            f"no tokenizer in {folder}: need tokenizer.json, or vocab.json and merges.txt, there "
            "or in another folder that tokenizer= (--tokenizer) names."
        )
    try:
        if path.is_file():
            return tokenizers.Tokenizer.from_file(str(path))
        backend = tokenizers.Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"cannot read the tokenizer in {folder}: {error}") from error
    prefix_space = bool(config.get("add_prefix_space", False))
    words = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    if str(config.get("tokenizer_class", "")).startswith("Qwen2"):
        backend.normalizer = normalizers.NFC()
        pieces = pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated")
        words = pre_tokenizers.Sequence(
            [pieces, pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=False)]
        )
    backend.pre_tokenizer = words
    backend.decoder = decoders.ByteLevel()
    listed = {int(i): token for i, token in config.get("added_tokens_decoder", {}).items()}
    for i, token in sorted(listed.items()):
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        options = {flag: bool(token[flag]) for flag in flags if flag in token}
        backend.add_tokens([AddedToken(token["content"], **options)])
        if backend.token_to_id(token["content"]) != i:
            raise ValueError(
                f"added token {token['content']!r} has id {i} in tokenizer_config.json, but "
                f"{backend.token_to_id(token['content'])} after vocab.json."
            )
    for token, i in sorted(_read_json(folder / "added_tokens.json").items(), key=lambda kv: kv[1]):
        if i not in listed:
            backend.add_tokens([AddedToken(token, normalized=False)])
    return backend


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the named special tokens; tokenizer_config.json wins over special_tokens_map.json."""
    merged = {**_read_json(folder / "special_tokens_map.json"), **config}
    found = {}
    for name in NAMED_TOKENS:
        token = _content_of(merged.get(name))
        if token:
            found[name] = token
    return found


def _content_of(token: Any) -> str | None:
    """Return the text of a token written as a string or as {"content": ...}."""
    token = token.get("content") if isinstance(token, Mapping) else token
    return token if isinstance(token, str) else None


def _eos_ids(folder: Path, backend: tokenizers.Tokenizer, eos: str | None) -> tuple[int, ...]:
    ids = [] if eos is None else [backend.token_to_id(eos)]
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        ids += [] if value is None else _id_list(value, name)
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def _id_list(value: Any, where: str) -> list[int]:
    ids = value if isinstance(value, list) else [value]
    if not all(type(i) is int and i >= 0 for i in ids):
        raise ValueError(f"eos_token_id in {where} must be token ids, got {value!r}.")
    return ids


def _read_json(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}
