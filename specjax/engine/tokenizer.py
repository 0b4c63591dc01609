"""Turn text into token ids and back: a Hugging Face folder's tokenizer, streamed text, stops."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

BROKEN = "\ufffd"  # what an incomplete UTF-8 sequence decodes to
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
GENERATION_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
QWEN2_PATTERN = (  # Qwen2's own word pattern; GPT-2 and OPT use the one built into ByteLevel
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokenizer:
    """Encode, decode and render chats as the checkpoint's folder says.

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

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        chat_template: str | None = None,
        **kwargs: Any,
    ) -> str:
        """Render messages with the checkpoint's chat template (or `chat_template`, jinja source).

        Encode the result with ``add_special_tokens=False``: templates write their own. Content
        is a string or a list of {"type": "text", "text": ...} parts, joined by newlines.
        Other keywords reach the template (``tools``, ``enable_thinking``, ...).

        Raises:
            ValueError: no template, a malformed message, or the template itself refuses.
        """
        if chat_template is None:
            name = "tool_use" if kwargs.get("tools") else "default"
            chat_template = self.chat_templates.get(name, self.chat_templates.get("default"))
        if chat_template is None:
            raise ValueError(
                "this tokenizer has no chat template: use generate() with a plain prompt, pass "
                "chat_template=, or add chat_template.jinja to the model folder."
            )
        if isinstance(messages, str | Mapping) or not messages:
            raise ValueError(f"messages must be a non-empty list of messages, got {messages!r}.")
        variables = {**self.special_tokens, "tools": None, "documents": None, **kwargs}
        variables["messages"] = [_message(message) for message in messages]
        variables["add_generation_prompt"] = add_generation_prompt
        try:
            return _compile_template(chat_template).render(variables)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"the chat template is not valid jinja: {error}") from error
        except (jinja2.TemplateError, TypeError) as error:
            raise ValueError(f"the chat template refused the messages: {error}") from error


class Detokenizer:
    """Stream token ids as text, never emitting half a character.

    Law: what `push` returned plus `flush` is the text that ``prompt_ids`` + the pushed ids have
    beyond ``prompt_ids``; without a prompt it is `Tokenizer.decode` of the pushed ids. Only a
    window of the last few ids is decoded, led by ids that are already out, so that a leading
    space belongs to its word. SentencePiece byte tokens that turn a run of valid characters into
    an invalid one leave those characters standing, where `decode` gives U+FFFD for every byte.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
    ):
        self._decode = functools.partial(tokenizer.decode, skip_special_tokens=False)
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._known = functools.partial(_is_known, tokenizer.backend)
        tail = [i for i in prompt_ids[-64:] if i not in self._skipped and self._known(i)]
        starts = (tail[-length:] for length in range(min(6, len(tail)), len(tail) + 1) if length)
        clean = (ids for ids in starts if not self._decode(ids).startswith(BROKEN))
        self._window = next(clean, [])  # the end of the prompt, from the start of a character
        self._context = len(self._window)  # how many ids of the window are out completely
        self._head = self._decode(self._window)  # their text
        self._sent = len(self._head.rstrip(BROKEN))  # characters of the window that are out

    def push(self, token_id: int) -> str:
        """Take one more token id and return the text it completes, possibly none."""
        if token_id in self._skipped or not self._known(token_id):
            return ""
        self._window.append(token_id)
        text = self._text()
        whole = text.rstrip(BROKEN)
        delta = whole[self._sent :]
        self._sent = max(self._sent, len(whole))
        if whole == text:
            self._window = self._window[self._context :]
            self._context = len(self._window)
            self._head = self._decode(self._window)
            self._sent = len(self._head)
        return delta

    def flush(self) -> str:
        """Return what was held back, U+FFFD for a character that never came whole."""
        text = self._text()
        delta, self._sent = text[self._sent :], len(text)
        return delta

    def _text(self) -> str:
        text = self._decode(self._window)
        if text.startswith(self._head.rstrip(BROKEN)):
            return text
        return self._head + self._decode(self._window[self._context :])


class StopChecker:
    """Watch streamed text for stop strings, and hold back what may become one.

    The match that ends first wins, and the longest of those: the result depends on the text
    only, not on how tokens cut it. A stop string counts if it is completed by a token after the
    first ``min_tokens`` (vLLM's rule). ``hit`` is the string found; ``num_tokens`` counts the
    tokens up to the one that completed it, where the ids are to be cut.
    """

    def __init__(
        self,
        stop: Sequence[str],
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
    ):
        self._stop = tuple(stop)
        self._include = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._held = ""  # text not out yet; a suffix of the text
        self._seen = ""  # the end of the text, as far as a match can reach back
        self.num_tokens = 0
        self.hit: str | None = None

    def push(self, text: str) -> str:
        """Take the text of one more token ("" counts) and return what may go out."""
        if self.hit is not None:
            return ""
        self.num_tokens += 1
        return self._take(text)

    def flush(self, text: str = "") -> str:
        """Take text of the last token that came late (`Detokenizer.flush`) and return the rest."""
        if self.hit is not None:
            return ""
        released = self._take(text)
        released, self._held = released + self._held, ""
        return released

    def _take(self, text: str) -> str:
        base = len(self._seen)
        self._seen, self._held = self._seen + text, self._held + text
        offset = len(self._seen) - len(self._held)  # where the held text starts
        matches = []
        for stop in self._stop if self.num_tokens > self._min_tokens else ():
            start = self._seen.find(stop, max(0, base - len(stop) + 1))
            if start >= 0:
                matches.append((start + len(stop), start, stop))
        if matches:
            end, start, self.hit = min(matches)
            cut = end if self._include else start
            released, self._held = self._held[: max(0, cut - offset)], ""
            return released
        keep = 0 if self._include else self._possible_start()
        split = len(self._held) - keep
        released, self._held = self._held[:split], self._held[split:]
        reach = max((len(stop) for stop in self._stop), default=0)
        self._seen = self._seen[max(0, len(self._seen) - reach) :]
        return released

    def _possible_start(self) -> int:
        """Return the length of the longest end of the held text that starts a stop string."""
        for length in range(min(len(self._held), max(map(len, self._stop), default=0)), 0, -1):
            end = self._held[-length:]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stop):
                return length
        return 0


def feed(detokenizer: Detokenizer, stops: StopChecker, token_ids: Sequence[int]) -> str:
    """Push ids until a stop string completes, and return the text that may go out.

    Check ``stops.hit`` and ``stops.num_tokens`` afterwards. To leave the text of an ending EOS or
    stop token out, as vLLM does, do not push that id.
    """
    pieces = []
    for token_id in token_ids:
        if stops.hit is not None:
            break
        pieces.append(stops.push(detokenizer.push(token_id)))
    return "".join(pieces)


def finish(detokenizer: Detokenizer, stops: StopChecker) -> str:
    """Return the text held back at the end of a request; "" after a stop string."""
    return stops.flush(detokenizer.flush())


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load tokenizer.json, or vocab.json + merges.txt (byte-level BPE: GPT-2, OPT, Qwen).

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
    extra = [_content_of(token) for token in config.get("additional_special_tokens") or ()]
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
        eos_ids=_eos_ids(folder, backend, special_tokens.get("eos_token")),
        special_tokens=special_tokens,
        special_ids=frozenset(i for i, token in decoder.items() if token.special),
        chat_templates=_chat_templates(folder, config),
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
    if not path.is_file() and not (vocab.is_file() and merges.is_file()):
        raise ValueError(
            f"no tokenizer in {folder}: need tokenizer.json, or vocab.json and merges.txt."
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


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Collect templates by name: chat_template.jinja wins over tokenizer_config.json."""
    found: dict[str, str] = {}
    listed = config.get("chat_template")
    if isinstance(listed, str):
        found["default"] = listed
    elif isinstance(listed, list):
        found.update({entry["name"]: entry["template"] for entry in listed})
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = path.read_text(encoding="utf-8")
    if (folder / "chat_template.jinja").is_file():
        found["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return found


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}.")
    return value


def _is_known(backend: tokenizers.Tokenizer, token_id: int) -> bool:
    return backend.id_to_token(token_id) is not None


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Check one chat message and flatten its content to a string."""
    if not isinstance(message, Mapping):
        raise ValueError(f"a message must be a mapping with role and content, got {message!r}.")
    if message.get("role") not in ROLES:
        raise ValueError(f"role must be one of {ROLES}, got {message.get('role')!r}.")
    content = message.get("content")
    if content is None:
        if message["role"] == "assistant" and message.get("tool_calls"):
            return dict(message)
        raise ValueError(f"the {message['role']} message has no content: {dict(message)!r}.")
    return {**message, "content": _content(content)}


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        for part in content:
            text = isinstance(part, Mapping) and part.get("type") == "text" and part.get("text")
            if not isinstance(text, str):
                raise ValueError(
                    'content parts must be {"type": "text", "text": ...} (specjax reads text '
                    f"only), got {part!r}."
                )
        return "\n".join(part["text"] for part in content)
    raise ValueError(f"content must be a string or a list of text parts, got {content!r}.")


class _GenerationBlock(jinja2.ext.Extension):
    """Read {% generation %} ... {% endgeneration %}, which marks training text, as its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _raise_exception(message: str):
    raise jinja2.TemplateError(message)


def _to_json(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@functools.cache
def _compile_template(source: str) -> jinja2.Template:
    """Compile a chat template in a sandbox: it comes with the weights, from strangers."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)
