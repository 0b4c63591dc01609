"""vLLM's ``kv_transfer_config``: where method "extract_hidden_states" saves its files."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specjax.engine.options.extraction import METHOD
from specjax.engine.options.mappings import read_mapping, suggest, warn_inert
from specjax.engine.options.sampling_params import SamplingParams
from specjax.engine.options.speculative import SpeculativeConfig
from specjax.engine.request_state import RequestState
from specjax.host.compile_cache import probe
from specjax.host.group import is_first
from specjax.weights.hidden_states import write_hidden_states

CONNECTOR = "ExampleHiddenStatesConnector"
ROLES, PRODUCERS = ("kv_producer", "kv_both", "kv_consumer"), ("kv_producer", "kv_both")
NAMES = ("kv_connector", "kv_role", "kv_connector_extra_config")
# What vLLM also knows and nothing here depends on: files are whole when their path is known.
INERT = ("engine_id", "kv_buffer_device", "kv_port", "kv_load_failure_policy")
INERT_EXTRA = ("num_writer_threads", "use_synchronization_lock")
EXTRA = ("shared_storage_path", "allow_custom_save_path")
REQUEST = ("hidden_states_path", "include_output_tokens")


@dataclass(frozen=True, kw_only=True)
class Connector:
    """Saves one file per request (``weights.hidden_states``) into a folder.

    A request may set two options in ``SamplingParams.extra_args["kv_transfer_params"]``:
    ``include_output_tokens`` (all tokens but the last, not the prompt alone) and, where
    ``allow_custom_save_path`` is set, ``hidden_states_path``.
    """

    folder: Path
    allow_custom_save_path: bool = False

    def check(self, params: SamplingParams) -> None:
        """Raise ValueError if a request's ``kv_transfer_params`` are wrong."""
        wanted = transfer_params(params)
        for name in wanted:
            if name not in REQUEST:
                raise ValueError(
                    f"unknown kv_transfer_params key {name!r}.{suggest(name, REQUEST)}"
                )
        if "hidden_states_path" in wanted and not self.allow_custom_save_path:
            raise ValueError(
                f"hidden_states_path={wanted['hidden_states_path']!r}: set allow_custom_save_path "
                "in kv_connector_extra_config, or leave the path out."
            )
        if params.n > 1:
            raise ValueError(f"{METHOD} saves one file per request, got n={params.n}: use n=1.")

    def save(self, first: int, request_state: RequestState, states: Any) -> dict[str, str]:
        """Write a finished request's file from hidden states [T, A, D]; return its path.

        ``first`` is the number of the first request of the batch.
        """
        wanted, tokens = transfer_params(request_state.request.params), request_state.request.prompt
        if wanted.get("include_output_tokens"):
            tokens = [*tokens, *request_state.tokens][:-1]  # the last one has no state
        unique = uuid.uuid4().hex[:8]  # as vLLM's: runs may share a folder
        name = f"{first + request_state.index}-{unique}.safetensors"
        path = Path(wanted.get("hidden_states_path") or self.folder / name)
        if is_first():
            write_hidden_states(path, tokens, np.asarray(states)[: len(tokens)])
        return {"hidden_states_path": str(path)}


def transfer_params(params: SamplingParams) -> Mapping[str, Any]:
    """Return a request's ``kv_transfer_params``, empty if it has none."""
    extra = params.extra_args or {}
    given = extra.get("kv_transfer_params", {})
    known = {"kv_transfer_params", "num_speculative_tokens"}
    if set(extra) - known or not isinstance(given, Mapping):
        raise ValueError(
            "extra_args may hold kv_transfer_params, a mapping, and num_speculative_tokens; got "
            f"{dict(extra)!r}."
        )
    return given


def read_connector(
    kv_transfer_config: Mapping[str, Any] | str | None, speculative: SpeculativeConfig | None
) -> Connector | None:
    """Return the connector of a `kv_transfer_config`: a mapping, its JSON text, or None.

    Raises:
        ValueError: the connector, the role, a key or the folder is wrong, or one of method
            "extract_hidden_states" and connector is there without the other.
    """
    extracting = speculative is not None and speculative.method == METHOD
    if kv_transfer_config is None:
        if extracting:
            raise ValueError(
                f"{METHOD} saves through a connector: pass kv_transfer_config={{'kv_connector': "
                f"'{CONNECTOR}', 'kv_role': 'kv_producer', 'kv_connector_extra_config': "
                "{'shared_storage_path': FOLDER}} (on the command line: specjax extract)."
            )
        return None
    config = read_mapping("kv_transfer_config", kv_transfer_config)
    check_keys("kv_transfer_config", config, NAMES, INERT)
    name, role = config.get("kv_connector"), config.get("kv_role")
    if name != CONNECTOR:
        raise ValueError(f"Connector {name!r} is not registered: specjax has {CONNECTOR!r} only.")
    if role is None:
        raise ValueError(
            f"Please specify kv_role when kv_connector is set, supported roles are {ROLES}."
        )
    if role not in ROLES:
        raise ValueError(f"Unsupported kv_role: {role!r}. Supported roles are {ROLES}.")
    if role not in PRODUCERS:
        raise ValueError(f"{CONNECTOR} only saves: kv_role must be 'kv_producer', got {role!r}.")
    if not extracting:
        raise ValueError(f"{CONNECTOR} only works when using {METHOD!r} speculative method.")
    extra = config.get("kv_connector_extra_config") or {}
    extra = read_mapping("kv_connector_extra_config", extra)
    check_keys("kv_connector_extra_config", extra, EXTRA, INERT_EXTRA)
    folder = Path(extra.get("shared_storage_path", "/tmp")).expanduser()
    try:
        probe(folder)
    except OSError as error:
        raise ValueError(f"shared_storage_path={str(folder)!r} takes no files: {error}.") from None
    custom = extra.get("allow_custom_save_path", False)
    return Connector(folder=folder, allow_custom_save_path=bool(custom))


def check_keys(
    what: str, config: Mapping[str, Any], known: Sequence[str], inert: Sequence[str]
) -> None:
    """Raise ValueError for an unknown key; warn of keys without effect."""
    for key in config:
        if key not in (*known, *inert):
            raise ValueError(f"unknown {what} key {key!r}.{suggest(key, (*known, *inert))}")
    warn_inert(f"{what} options", [key for key in config if key in inert])
