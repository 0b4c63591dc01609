"""One small tokenizer of every kind, trained or written here."""

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

CORPUS = [
    "def f(x):\n    return x + 1\n",
    "the future of AI is bright, you're right",
    "你好 déjà 🤗",
] * 4
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level():
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def unigram():
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=80, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def byte_fallback():
    """Llama 2's shape: pieces with a leading underscore, bytes for everything else."""
    words = ["▁", "▁the", "▁a", "b", "c", "▁▁", "."]
    vocab = ["<unk>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words]
    backend = tokenizers.Tokenizer(
        models.BPE({w: i for i, w in enumerate(vocab)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.add_special_tokens(["<unk>", "</s>"])
    replace, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    backend.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), strip])
    return backend


def word_level():
    backend = tokenizers.Tokenizer(
        models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return backend
