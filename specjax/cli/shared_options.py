"""Options that several commands have in common, written once."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

Command = Callable[..., None]


def with_options_of(
    shared: Callable[..., Any],
    command: Command,
    run: Callable[[Command, dict[str, Any]], None],
    filled: str | None = None,
) -> Command:
    """Return a command that has the options of ``shared`` beside its own.

    Args:
        shared: a function whose parameters are further options.
        command: the command.
        run: called with ``command``, its own options bound, and the values of the shared ones.
        filled: a parameter of the command that ``run`` gives, and that is no option.
    """
    own, further = (inspect.signature(f, eval_str=True).parameters for f in (command, shared))

    @functools.wraps(command)
    def whole(**given: Any) -> None:
        values = {name: given.pop(name) for name in further}
        return run(functools.partial(command, **given), values)

    parameters = {name: one for name, one in (own | further).items() if name != filled}
    whole.__annotations__ = {name: one.annotation for name, one in parameters.items()}
    listed = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters.values()]
    vars(whole)["__signature__"] = inspect.Signature(listed)
    return whole
