"""The types that all parts of specjax exchange: arrays, the contracts of functions, an engine.

Sizes: B rows, T capacity, N nodes, K depth, V vocabulary, D hidden, H heads, A tapped
layers, P positions observed at once. What lies past a length is garbage. Parameters of the
contracts are positional; ``params`` is a pytree of weights.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Int8, Key, Shaped

PyTree = Any

# Of a pass's nodes: each follows its parent, or the node before it; or that, and those present are
# kept, as a prompt's are.
NodeOrder = Literal["tree", "chain", "text"]
RUNNING, STOPPED, LENGTH, IDLE, FAILED = range(5)  # Text.reason


class Int8Matrix(NamedTuple):
    """A matrix as whole numbers with a scale for each output: ``numbers * scales[:, None]``."""

    numbers: Int8[Array, "O I"]
    scales: Float[Array, "O"]


class Text(NamedTuple):
    """The tokens of each row, prompt and output, and where they start and end."""

    tokens: Int[Array, "B T"]  # garbage past lengths
    starts: Int[Array, "B"]  # prompt lengths
    lengths: Int[Array, "B"]  # committed tokens
    limits: Int[Array, "B"]  # stop when lengths == limits
    reason: Int[Array, "B"]  # RUNNING, STOPPED, LENGTH, IDLE or FAILED; only running rows commit


class Penalties(NamedTuple):
    """vLLM's penalties: repetition counts prompt and output, the other two the output only."""

    repetition: Float[Array, "B"]
    presence: Float[Array, "B"]
    frequency: Float[Array, "B"]


class Sampling(NamedTuple):
    """The sampling parameters of each row; a field that is None is absent from the program."""

    temperature: Float[Array, "B"]  # 0: the most likely token
    max_draft: Int[Array, "B"]  # the deepest draft node that is verified; 0 is plain decoding
    stop_ids: Int[Array, "B S"]  # padded with V
    min_tokens: Int[Array, "B"] | None = None  # no stop id before this many output tokens
    top_k: Int[Array, "B"] | None = None  # V: off
    top_p: Float[Array, "B"] | None = None  # 1: off
    min_p: Float[Array, "B"] | None = None  # 0: off
    penalties: Penalties | None = None
    bias: Float[Array, "B V"] | None = None  # logit_bias, and -1e30 outside allowed ids
    bad_words: Int[Array, "B W L"] | None = None  # right-aligned, padded with V on the left
    scored_ids: Int[Array, "B J"] | None = None  # logprob_token_ids, padded with 0
    mask: Int[Array, "B N M"] | None = None  # a grammar's, at each node: a bit per token, M words


class Slots(NamedTuple):
    """A layer's keys and values of all positions: position p is in slot p.

    Latent attention (``models.latent``) reads its values from its keys: that leaf holds the keys of
    its indexer, or has e = 0.
    """

    keys: Shaped[Array, "B H T d"]  # floats, or bfloat16's bits (``ops.BITS``)
    values: Shaped[Array, "B H T e"]


class Ring(NamedTuple):
    """A sliding-window layer's keys and values of the last R positions: p is in slot p mod R.

    R is the window, and what passes may write beyond it (``cache.RING_ROOM``): so what is written
    and then rejected has overwritten nothing that a later query sees.
    """

    keys: Shaped[Array, "B H R d"]
    values: Shaped[Array, "B H R e"]


class DeltaInputs(NamedTuple):
    """What nodes do to a layer's recurrent state (``core.delta``), and enter its convolution."""

    keys: Float[Array, "B N KH d"]
    values: Float[Array, "B N H e"]
    decay: Float[Array, "B N H"]  # the logarithm of what is left of the state
    strength: Float[Array, "B N H"]  # of writing, 0 to 1
    channels: Float[Array, "B N C"]


class Recurrent(NamedTuple):
    """A layer's state after the tokens that are kept, of a size that no text changes.

    What rejected tokens did to a state cannot be masked, as their keys and values are. So a round
    does not change it: ``inputs`` holds what each node would do, and ``cache.keep`` does it for the
    accepted ones, by the same steps as the pass that verified them.
    """

    state: Float[Array, "B H d e"]  # in float32
    tail: Float[Array, "B L C"]  # the last inputs of the convolution
    inputs: DeltaInputs | None = None  # of a round's nodes, from the forward pass to ``keep``


class Cache(NamedTuple):
    """What each layer keeps of the text; a running row's is one token behind its text."""

    layers: tuple[Slots | Ring | Recurrent, ...]
    lengths: Int[Array, "B"]


class Draft(NamedTuple):
    """A tree of proposals per row; node 0 is the root, the last committed token."""

    tokens: Int[Array, "B N"]
    parents: Int[Array, "B N"]  # parents[:, 0] == 0; parents[:, i] < i
    valid: Bool[Array, "B N"]  # False on padding nodes; the root is always valid
    probs: Float[Array, "B N V"] | None  # each node was drawn from these; None: deterministic


class Output(NamedTuple):
    """The hidden states of one forward pass of the target."""

    hidden: Float[Array, "B N D"]  # before the LM head
    taps: Float[Array, "B N A D"]  # the residual stream after the tapped layers


class Verdict(NamedTuple):
    """The result of verification: which nodes were accepted, and the tokens to emit."""

    path: Int[Array, "B K1"]  # the node behind each emitted token: root, then accepted drafts
    tokens: Int[Array, "B K1"]  # accepted tokens, one recovered or bonus token, then garbage
    num_accepted: Int[Array, "B"]


class Observation(NamedTuple):
    """New committed tokens and the target's hidden states before them, for the drafter."""

    tokens: Int[Array, "B P"]  # the committed token that FOLLOWS position start + i
    hidden: Float[Array, "B P D"]  # of position start + i
    taps: Float[Array, "B P A D"]
    start: Int[Array, "B"]
    count: Int[Array, "B"]  # how many of the P are real


class Logprobs(NamedTuple):
    """Log probabilities of the target's raw logits: column 0 is the emitted token itself.

    The likeliest tokens follow, then those of ``Sampling.scored_ids``.
    """

    ids: Int[Array, "B P L1"]
    values: Float[Array, "B P L1"]
    ranks: Int[Array, "B P"]  # 1 for the most likely token


class StepInfo(NamedTuple):
    """Counts and tokens of one round; all metrics derive from them. Other rows report 0."""

    num_drafted: Int[Array, "B"]
    num_accepted: Int[Array, "B"]  # before truncation
    num_emitted: Int[Array, "B"]  # after truncation
    tokens: Int[Array, "B M"]  # the emitted ones come first; then garbage
    reason: Int[Array, "B"]  # afterwards, as in Text
    drafted: Int[Array, "B N1"]  # the tokens of nodes 1 .. N - 1, -1 where nothing was drafted
    logprobs: Logprobs | None


@runtime_checkable
class InitDrafter(Protocol):
    """Allocate a drafter's state."""

    def __call__(self, params: PyTree, batch_size: int, capacity: int, /) -> PyTree:
        """Return a pytree whose leaves all have batch_size rows, for texts up to capacity."""
        ...


@runtime_checkable
class Propose(Protocol):
    """Draft up to K tokens per row, as vLLM's proposers do. Reads no new committed tokens."""

    def __call__(
        self, params: PyTree, state: PyTree, text: Text, sampling: Sampling,
        keys: Key[Array, "B"], window: int, /,
    ) -> tuple[Draft, PyTree]:  # fmt: skip
        """Return the draft and the state; attention may read ``window`` cache positions.

        A cache in the state may be written past its lengths, which stay as they are.
        """
        ...


@runtime_checkable
class Observe(Protocol):
    """Bring a drafter's state up to date with newly committed tokens."""

    def __call__(
        self, params: PyTree, state: PyTree, text: Text, observation: Observation, window: int, /
    ) -> PyTree:
        """Return the new state; rows whose ``observation.count`` is 0 keep theirs.

        Positions come from ``observation.start``, so that a second call changes nothing.
        """
        ...


@runtime_checkable
class InitCache(Protocol):
    """Allocate a model's key-value cache."""

    def __call__(self, batch_size: int, capacity: int, /) -> Cache:
        """Return an empty cache of ``capacity`` positions per row."""
        ...


@runtime_checkable
class Forward(Protocol):
    """Run the target over N nodes per row, writing their keys and values to the cache."""

    def __call__(
        self,
        params: PyTree,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        visible: Bool[Array, "B1 N M"],
        cache: Cache,
        window: int,
        only: Int[Array, "B"] | None = None,
        present: Bool[Array, "B N"] | None = None,
        order: NodeOrder = "tree",
        /,
    ) -> tuple[Output, Cache]:
        """Return hidden states [B, N, D] and the cache, whose lengths are not advanced.

        Args:
            params: weights.
            tokens: ids.
            positions: of each node, for RoPE.
            visible: which of the last M slots each node attends to; B1 is B or 1. Node i is
                written to slot ``cache.lengths + (M - N) + i``, column m is slot
                ``cache.lengths + m``. Slots below the lengths are always visible.
            cache: is written to.
            window: attention reads this prefix of the cache; static.
            only: the one node of each row whose hidden state is returned, as [B, 1, D].
            present: False for padding nodes, which need not be computed.
            order: what the caller knows of ``visible``; static. Recurrent states advance at once by
                the nodes of a text that are present; otherwise ``cache.keep`` advances them.
        """
        ...


@runtime_checkable
class Logits(Protocol):
    """Apply the LM head."""

    def __call__(
        self, params: PyTree, hidden: Float[Array, "*lead D"], /
    ) -> Float[Array, "*lead V"]:
        """Return float32 logits of hidden states, or of a head's features."""
        ...


@runtime_checkable
class Fuse(Protocol):
    """Make the features that a drafting head reads."""

    def __call__(
        self, params: PyTree, hidden: Float[Array, "B N D"], taps: Float[Array, "B N A D"], /
    ) -> Float[Array, "B N F"]:
        """Return features of the target's last hidden states (EAGLE) or tapped layers (EAGLE-3)."""
        ...


@runtime_checkable
class MaskFeatures(Protocol):
    """Make the feature that stands where the target's is not known yet (P-EAGLE)."""

    def __call__(self, params: PyTree, /) -> Float[Array, "1 1 F"]:
        """Return one feature for all masks."""
        ...


@runtime_checkable
class ForwardHead(Protocol):
    """Run a drafting head over N pairs of a token and the feature before it."""

    def __call__(
        self,
        params: PyTree,
        tokens: Int[Array, "B N"],
        features: Float[Array, "B N F"],
        positions: Int[Array, "B N"],
        visible: Bool[Array, "B1 N M"],
        cache: Cache,
        window: int,
        only: Int[Array, "B"] | None = None,
        present: Bool[Array, "B N"] | None = None,
        /,
    ) -> tuple[Float[Array, "B N1 F"], Cache]:
        """Return the next features and the head's cache; the other arguments as in ``Forward``."""
        ...


@runtime_checkable
class Remember(Protocol):
    """Write what the target's hidden states mean to a block head: keys and values, no more."""

    def __call__(
        self,
        params: PyTree,
        taps: Float[Array, "B P A D"],
        positions: Int[Array, "B P"],
        cache: Cache,
        /,
    ) -> Cache:
        """Return the cache with slots ``cache.lengths`` and on written; lengths do not advance."""
        ...


@runtime_checkable
class ForwardBlock(Protocol):
    """Run a block head over N tokens per row, most of them masks."""

    def __call__(
        self,
        params: PyTree,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        visible: Bool[Array, "B1 N M"],
        places: Int[Array, "B2 W"],
        cache: Cache,
        window: int,
        /,
    ) -> tuple[Float[Array, "B N D"], Cache]:
        """Return hidden states and the cache, as ``Forward`` does.

        ``places`` are the positions of the first ``window`` slots, from which layers that are
        causal or have a sliding window narrow ``visible``.
        """
        ...


@runtime_checkable
class Follow(Protocol):
    """Tell how a token changes the logits of the next (DSpark's Markov head)."""

    def __call__(self, params: PyTree, tokens: Int[Array, "*lead"], /) -> Float[Array, "*lead V"]:
        """Return what is added to the logits after each token."""
        ...


@runtime_checkable
class Confidence(Protocol):
    """Tell how likely a draft token is to be accepted (DSpark's confidence head)."""

    def __call__(
        self, params: PyTree, hidden: Float[Array, "*lead D"], before: Int[Array, "*lead"], /
    ) -> Float[Array, "*lead"]:
        """Return the logit of that chance, given the token before each."""
        ...


@runtime_checkable
class StartStages(Protocol):
    """Turn the target's last hidden state into what stage 0 reads."""

    def __call__(self, params: PyTree, hidden: Float[Array, "B D"], /) -> Float[Array, "B C"]:
        """Return the first carry."""
        ...


@runtime_checkable
class StepStage(Protocol):
    """Run one of Medusa's heads, or one step of an MLP speculator."""

    def __call__(
        self, params: PyTree, carry: Float[Array, "B C"], token: Int[Array, "B"], stage: int, /
    ) -> tuple[Float[Array, "B C2"], Float[Array, "B V"]]:
        """Return the next carry and the logits of draft token ``stage``, given the one before."""
        ...


@runtime_checkable
class StagesAtOnce(Protocol):
    """Run Medusa's heads, which read no drafted token, together."""

    def __call__(
        self, params: PyTree, carry: Float[Array, "B C"], depth: int, /
    ) -> Float[Array, "B K V"]:
        """Return the logits of draft tokens 0 .. ``depth`` - 1; a shared LM head is read once."""
        ...


@runtime_checkable
class DrawNoise(Protocol):
    """Draw the random numbers of a verification rule."""

    def __call__(
        self, keys: Key[Array, "B"], text: Text, draft: Draft, sampling: Sampling,
        vocab_size: int, /,
    ) -> PyTree:  # fmt: skip
        """Return arrays that depend on each row's key and token positions, never on other rows.

        Rejection takes uniforms [B, N] and exponential numbers [B, N, V] (``verify.noise``), walk
        Gumbel noise [B, N, V].
        """
        ...


@runtime_checkable
class Verify(Protocol):
    """Accept or reject draft tokens, given the target's logits; vLLM's rejection sampler."""

    def __call__(
        self, noise: PyTree, draft: Draft, logits: Float[Array, "B N V"], text: Text,
        sampling: Sampling, depth: int,
    ) -> Verdict:  # fmt: skip
        """Return the accepted path of at most ``depth`` nodes, and one token of the target.

        ``logits[:, i]`` are those of the token after node i, before sampling parameters apply.
        """
        ...


class Drafter(NamedTuple):
    """A drafting method as functions (vLLM: proposer). ``observe`` reads, ``propose`` drafts."""

    init: InitDrafter
    propose: Propose
    observe: Observe
    depth: int  # K
    nodes: int  # N (chain: K + 1)
    slots: int = 0  # of its own cache that a round writes past the text's length
    reads_hidden: bool = False  # ``observe`` needs hidden states of all positions
    taps: tuple[int, ...] = ()  # the layers that ``Observation.taps`` shows, ascending

    @property
    def room(self) -> int:
        """How far past a text's length a round may write."""
        return max(self.nodes, self.slots)


@runtime_checkable
class LoadDraft(Protocol):
    """Load the weights of a drafter, after all options have been checked."""

    def __call__(self, target: PyTree, /) -> PyTree:
        """Return the drafter's ``params``, given the target's: embeddings can be shared."""
        ...


# Builds a drafter of one's own: the ``model`` of method "custom_class". Called as
# factory(target, num_speculative_tokens=K, **drafter_options), it returns a drafter, with a
# function that loads its weights if it has any; called again with the same arguments, an equal
# drafter, since JAX compiles a program per drafter. A wrong option is a ValueError that names it.
DrafterFactory = Callable[..., Drafter | tuple[Drafter, LoadDraft]]


class Target(NamedTuple):
    """The model whose output is kept, as functions (``models.build``).

    Keeping an accepted path is ``cache.keep``: the same for every target, so not a field.
    """

    init_cache: InitCache
    forward: Forward
    logits: Logits
    vocab_size: int
    hidden_size: int
    dtype: str = "float32"  # of hidden states


class FeatureHead(NamedTuple):
    """An EAGLE, EAGLE-3 or MTP head as functions (``models.heads``)."""

    init_cache: InitCache
    fuse: Fuse
    forward: ForwardHead
    logits: Logits
    size: int  # F, of features
    dtype: str  # of features
    mask_features: MaskFeatures | None = None  # P-EAGLE's
    mask_token_id: int | None = None


class BlockHead(NamedTuple):
    """A DFlash or DSpark head as functions (``models.dflash``)."""

    init_cache: InitCache
    remember: Remember
    forward: ForwardBlock
    logits: Logits
    follow: Follow | None
    confidence: Confidence | None
    mask_token_id: int
    sample_from_anchor: bool  # the root's output is the first draft token's, not its own


class Stages(NamedTuple):
    """Medusa's heads or an MLP speculator as functions: stage i proposes draft token i."""

    start: StartStages
    step: StepStage
    vocab_size: int
    hidden_size: int  # D
    dtype: str
    at_once: StagesAtOnce | None = None  # None: a stage reads the token before


class Rule(NamedTuple):
    """A verification rule: its random numbers, and its decision given them."""

    draw_noise: DrawNoise
    verify: Verify


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
    """Everything that a round changes. B leads every leaf."""

    text: Text
    cache: Cache
    drafter: PyTree
    sampling: Sampling
    keys: Key[Array, "B"]
