"""Our own server with the bundled pair, and one specimen of the zoo in place of its rule."""

import contextlib
from collections.abc import Iterator
from unittest import mock

from specjax import LLM
from specjax.audit.specimen import Specimen
from specjax.core import decode
from specjax.core.types import Rule
from specjax.engine import build
from specjax.engine.service import Service
from specjax.server.app import create_app
from specjax.server.deployment import Deployment
from tests.server.running import running

SLOTS, MAX_MODEL_LEN, WAITING = 32, 256, 2048
CACHED = 2**26  # bytes of prefixes: a prompt is read once


def drafting(num_speculative_tokens: int) -> dict:
    """Return the config of the bundled draft model, whose tokens are sampled."""
    return {
        "method": "draft_model",
        "model": "bundled:draft",
        "num_speculative_tokens": num_speculative_tokens,
        "draft_sample_method": "probabilistic",
    }


def beyond_the_prompt(broken: Rule, sound: Rule) -> Rule:
    """Return a rule that is sound for a prompt's first token, which nobody drafted."""

    def verify(noise, draft, logits, text, sampling, depth):
        rule = broken if depth else sound
        return rule.verify(noise, draft, logits, text, sampling, depth)

    return Rule(broken.draw_noise, verify)


@contextlib.contextmanager
def serving(specimen: Specimen | None, num_speculative_tokens: int) -> Iterator[str]:
    """Serve the bundled pair with a specimen's fault, or without a draft model; yield the URL."""
    config, step = None, decode.step
    rule = None
    if specimen is not None:
        config, step = drafting(num_speculative_tokens), specimen.step
        rule = beyond_the_prompt(specimen.rule, specimen.sound)
    with contextlib.ExitStack() as changed:
        if rule is not None:
            changed.enter_context(mock.patch.object(build, "choose_rule", return_value=rule))
            changed.enter_context(mock.patch.object(decode, "step", step))
        llm = LLM(
            "bundled",
            speculative_config=config,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=SLOTS,
        )
        service = Service(llm.core, max_waiting=WAITING, prefix_cache_bytes=CACHED)
        deployment = Deployment(service=service, names=("bundled",), max_queued=WAITING)
        try:
            with running(create_app(deployment), lifespan="off") as url:
                yield url
        finally:
            service.close(drain=False)
