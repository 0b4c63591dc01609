"""The types every part of specjax speaks: four nouns and what travels between them.

Sizes: B rows, T capacity, N nodes, K depth, V vocabulary, D hidden, H heads, A tapped
layers, P positions observed at once. What lies past a length is garbage.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, Int, Key, Shaped

PyTree = Any

RUNNING, STOPPED, LENGTH, IDLE, FAILED = range(5)  # Text.reason


class Text(NamedTuple):
    """The only truth about a request: its tokens, and where they start and end."""

    tokens: Int[Array, "B T"]  # garbage past lengths
    starts: Int[Array, "B"]  # prompt lengths
    lengths: Int[Array, "B"]  # committed tokens
    limits: Int[Array, "B"]  # stop when lengths == limits
    reason: Int[Array, "B"]  # RUNNING, STOPPED, LENGTH, IDLE or FAILED; only running rows commit


class Cache(NamedTuple):
    """Keys and values, one leaf per layer; while a row runs it lags the text by the root.

    Latent attention (``models.latent``) reads its values from its keys: those leaves have e = 0.
    """

    keys: tuple[Shaped[Array, "B H T d"], ...]  # floats, or bfloat16's bits (``ops.BITS``)
    values: tuple[Shaped[Array, "B H T e"], ...]
    lengths: Int[Array, "B"]


class Draft(NamedTuple):
    """A tree of proposals per row; node 0 is the root, the last committed token."""

    tokens: Int[Array, "B N"]
    parents: Int[Array, "B N"]  # parents[:, 0] == 0; parents[:, i] < i
    valid: Bool[Array, "B N"]  # False on padding nodes; the root is always valid
    probs: Float[Array, "B N V"] | None  # law each node was drawn from; None: the target decides


class Output(NamedTuple):
    """What one target forward shows."""

    hidden: Float[Array, "B N D"]  # before the LM head
    taps: Float[Array, "B N A D"]  # the residual stream after the tapped layers


class Verdict(NamedTuple):
    """What the target said about a draft."""

    path: Int[Array, "B K1"]  # the node behind each emitted token: root, then accepted drafts
    tokens: Int[Array, "B K1"]  # accepted tokens, one recovered or bonus token, then garbage
    num_accepted: Int[Array, "B"]


class Observation(NamedTuple):
    """What a drafter may learn; the same type per prefill chunk and per step."""

    tokens: Int[Array, "B P"]  # the committed token that FOLLOWS position start + i
    hidden: Float[Array, "B P D"]  # of position start + i
    taps: Float[Array, "B P A D"]
    start: Int[Array, "B"]
    count: Int[Array, "B"]  # how many of the P are real


class Logprobs(NamedTuple):
    """Log probabilities under the raw target law: column 0 is the emitted token itself."""

    ids: Int[Array, "B P L1"]
    values: Float[Array, "B P L1"]
    ranks: Int[Array, "B P"]  # 1 for the most likely token


class StepInfo(NamedTuple):
    """What one round did; every metric derives from these. Rows that do not run report 0."""

    num_drafted: Int[Array, "B"]
    num_accepted: Int[Array, "B"]  # before truncation
    num_emitted: Int[Array, "B"]  # after truncation
    tokens: Int[Array, "B M"]  # what was emitted comes first; then garbage
    reason: Int[Array, "B"]  # afterwards, as in Text
    drafted: Int[Array, "B N1"]  # the tokens of nodes 1 .. N - 1, -1 where nothing was drafted
    logprobs: Logprobs | None


class Drafter(NamedTuple):
    """Everything a drafting method is. ``propose`` extrapolates, ``observe`` catches up."""

    init: Callable  # (params, batch_size, capacity) -> drafter_state
    propose: Callable  # (params, state, text, sampling, keys, window) -> (Draft, state)
    observe: Callable  # (params, state, text, Observation, window) -> state
    depth: int  # K
    nodes: int  # N (chain: K + 1)
    slots: int = 0  # of a cache of its own that a round writes to, past the text's length
    reads_hidden: bool = False  # of every position that ``observe`` is given

    @property
    def room(self) -> int:
        """How far past a text's length a round may write."""
        return max(self.nodes, self.slots)


class Target(NamedTuple):
    """The big model, as functions; see ``models.build`` for their contracts.

    Keeping an accepted path is ``cache.keep``: the same for every target, so not a field.
    """

    init_cache: Callable  # (batch_size, capacity) -> Cache
    forward: Callable  # (params, tokens, positions, visible, cache, window, only=None,
    #                    present=None) -> (Output, Cache); ``only`` [B]: the one node of each row
    #                    whose hidden state is wanted, [B, 1, D]; ``present`` [B, N]: False for
    #                    padding, for which nothing need be computed
    logits: Callable  # (params, hidden) -> Float[..., V]
    vocab_size: int
    hidden_size: int
    dtype: str = "float32"  # of hidden states


class FeatureHead(NamedTuple):
    """A head that extrapolates the target's features, as functions (``models.heads``)."""

    init_cache: Callable  # (batch_size, capacity) -> Cache
    fuse: Callable  # (params, hidden, taps) -> features [B, N, D]
    forward: Callable  # (params, tokens, features, positions, visible, cache, window, only=None,
    #                    present=None) -> (next features, Cache); as a target's forward
    logits: Callable  # (params, features) -> Float[..., V]
    size: int  # D
    dtype: str  # of features


class Stages(NamedTuple):
    """Medusa's heads or an MLP speculator, as functions: stage i names token i of a draft."""

    start: Callable  # (params, hidden [B, D]) -> carry
    step: Callable  # (params, carry, token [B], stage) -> (carry, logits [B, V])
    vocab_size: int
    hidden_size: int  # D
    dtype: str


class Rule(NamedTuple):
    """A verification rule and the noise it wants."""

    address: Callable  # (keys, text, draft, sampling, vocab_size) -> noise, a pytree of arrays
    verify: Callable  # (noise, draft, logits, text, sampling, depth) -> Verdict


class Engine(NamedTuple):
    """Everything static about a generation: the one static argument of jit."""

    target: Target
    drafter: Drafter
    rule: Rule
    window: int  # attention reads this prefix of the cache
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None


class Params(NamedTuple):
    """Weights, always an argument of jit."""

    target: PyTree
    draft: PyTree


class State(NamedTuple):
    """Everything that changes. B leads every leaf."""

    text: Text
    cache: Cache
    drafter: PyTree
    sampling: Any  # specjax.sampling.Sampling
    keys: Key[Array, "B"]
