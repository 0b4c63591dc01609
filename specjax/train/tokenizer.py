"""Train a byte-level BPE tokenizer for code, in a format that transformers loads."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from specjax.host.files import write_atomically, write_json

END_OF_TEXT = "<|endoftext|>"

# Runs of two or more spaces stand alone (indentation), and so do line ends: a prompt that
# stops after "def f(x):\n" or inside the indentation is cut where the training text is.
# A word may carry one space, underscore, dot or parenthesis; operators carry the line end.
PIECES = r" {2,}|\t+|\r?\n+|[ _.(]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+\n*|\s"

# Plain text: this model completes, it was never taught turns.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Return a tokenizer with merges learned from ``texts`` and all 256 bytes in its vocabulary.

    Deterministic: the same texts in the same order give the same vocabulary. Raises
    ValueError when the texts are too few for ``vocab_size``.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the text gives only {tokenizer.get_vocab_size()} tokens, asked for {vocab_size}"
        )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json into ``folder``, atomically each."""
    with write_atomically(folder / "tokenizer.json") as file:
        file.write(tokenizer.to_str(pretty=False).encode())
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "bos_token": None,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(folder / "tokenizer_config.json", described)


def load_tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    """Return the tokenizer in ``folder``, for training a model of ``vocab_size``.

    Raises ValueError when it is missing, of another size, or without the end-of-text token.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"no tokenizer.json in {folder}")
    tokenizer = Tokenizer.from_file(str(path))
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"{path} has {tokenizer.get_vocab_size()} tokens, vocab_size is {vocab_size}"
        )
    end_of_text(tokenizer)
    return tokenizer


def end_of_text(tokenizer: Tokenizer) -> int:
    """Return the id that ends every document. Raises ValueError if there is none."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    if end is None:
        raise ValueError(f"the tokenizer has no {END_OF_TEXT} token")
    return end
