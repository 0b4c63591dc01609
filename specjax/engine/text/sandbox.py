"""Run chat templates, which come with the weights: no access to Python, bounded work and text.

jinja's sandbox keeps a template from Python's internals, but limits no loop except ``range``'s.
Here every pass of a loop, call and output is counted, and too large values are never built.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox
import jinja2.visitor

MOST_STEPS = 250_000  # passes of loops, calls and outputs in one rendering: about a second
MOST_CHARACTERS = 2**26  # printed in one rendering
MOST_SIZE = 2**23  # characters or items of one value
MOST_PRODUCT = 2**28  # of the lengths of two texts: one may replace each character of the other
ITEMS_PER_STEP = 128  # of a value that a filter reads
UNSAFE = ("wordwrap", "urlize", "pprint")  # filters that no chat template needs, and slow
MOST_NUMBER = 10**6  # as an argument: a width or a count
WIDE = re.compile(r"[\d*]{7}")  # of a width in a format string


class Spent:
    """The work that a rendering has done."""

    def __init__(self):
        self.steps = self.characters = 0

    def add(self, steps: int, characters: int) -> None:
        """Count work, or raise jinja2.TemplateRuntimeError if it is too much."""
        self.steps += steps
        self.characters += characters
        if self.steps > MOST_STEPS or self.characters > MOST_CHARACTERS:
            raise too_much(f"{MOST_STEPS} loop passes and calls or {MOST_CHARACTERS} characters")


spent: ContextVar[Spent] = ContextVar("spent")  # of the present rendering


def render_template(source: str, variables: Mapping[str, Any]) -> str:
    """Return the text of a template with its variables.

    Raises:
        jinja2.TemplateError: the template is not valid, raises an exception, or exceeds a limit.
    """
    token = spent.set(Spent())
    try:
        return compile_template(source).render(variables)
    except (MemoryError, RecursionError, OverflowError) as error:
        raise too_much(type(error).__name__) from None
    finally:
        spent.reset(token)


def too_much(what: str) -> jinja2.TemplateRuntimeError:
    """Return the error of a template that exceeds a limit."""
    return jinja2.TemplateRuntimeError(f"it does too much work: more than {what}")


def step(characters: int) -> bool:
    """Count the text of one pass of a loop; the call of this function counts the pass."""
    spent.get().add(0, characters)
    return True


def shown(value: Any) -> Any:
    """Return a value that is printed, and count its characters."""
    spent.get().add(1, len(value) if isinstance(value, str) else 0)
    return value


def concatenate(*parts: Any) -> str:
    """Return jinja's ``a ~ b``, of a bounded size."""
    texts = [str(part) for part in parts]
    if sum(map(len, texts)) > MOST_SIZE:
        raise too_much(f"{MOST_SIZE} characters in a value")
    return "".join(texts)


def check_arguments(values: Sequence[Any]) -> None:
    """Raise jinja2.TemplateRuntimeError for arguments whose result may be too large."""
    numbers = [one for one in values if isinstance(one, int | float)]
    if any(abs(one) > MOST_NUMBER for one in numbers):
        raise too_much(f"{MOST_NUMBER} as an argument")
    texts = [one for one in values if isinstance(one, str)]
    if any("%" in one and WIDE.search(one) for one in texts):
        raise too_much(f"{MOST_NUMBER} as a width")
    longest = sorted(map(len, texts))[-2:]
    if len(longest) == 2 and longest[0] * longest[1] > MOST_PRODUCT:
        raise too_much(f"{MOST_PRODUCT} as the product of two lengths")
    for one in values:
        items = one if isinstance(one, list | tuple) else ()
        if sum(len(item) for item in items if isinstance(item, str)) > MOST_SIZE:
            raise too_much(f"{MOST_SIZE} characters in a list")


def checked(value: Any) -> Any:
    """Return a value, or raise jinja2.TemplateRuntimeError if it is too large."""
    if isinstance(value, str | Sequence | Mapping) and len(value) > MOST_SIZE:
        raise too_much(f"{MOST_SIZE} characters or items in a value")
    return value


class Counted(jinja2.visitor.NodeTransformer):
    """Makes each pass of a loop call ``step``, and each ``~`` call ``concatenate``."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.For:
        """Return the loop with a call before its body."""
        constant = sum(len(text.data) for text in node.find_all(jinja2.nodes.TemplateData))
        self.generic_visit(node)
        count = call("step", [jinja2.nodes.Const(constant)], node.lineno)
        node.body.insert(0, jinja2.nodes.ExprStmt(count, lineno=node.lineno))
        if node.test is not None:
            counts = call("step", [jinja2.nodes.Const(0)], node.lineno)
            node.test = jinja2.nodes.And(counts, node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Call:
        """Return a call of ``concatenate`` with the operands."""
        self.generic_visit(node)
        return call("concatenate", node.nodes, node.lineno)


def call(name: str, args: list[jinja2.nodes.Expr], lineno: int) -> jinja2.nodes.Call:
    """Return the node of a call of one of this module's functions."""
    function = jinja2.nodes.ImportedName(f"{__name__}.{name}", lineno=lineno)
    return jinja2.nodes.Call(function, args, [], None, None, lineno=lineno)


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """jinja's sandbox with limits on work and sizes."""

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        return Counted().visit(super()._parse(source, name, filename))

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function, method or macro, and count it."""
        spent.get().add(1, 0)
        if not isinstance(__obj, jinja2.runtime.Macro) and __obj not in (step, concatenate):
            owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
            owners = (owner,) if isinstance(owner, str) else ()
            if owners and "{" in owners[0] and WIDE.search(owners[0]):
                raise too_much(f"{MOST_NUMBER} as a width")
            check_arguments((*owners, *args, *kwargs.values()))
        return checked(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator whose result may be large."""
        sizes = [len(one) for one in (left, right) if isinstance(one, str | Sequence)]
        counts = [one for one in (left, right) if isinstance(one, int | float)]
        if operator == "%" and sizes:
            check_arguments((left, *(right if isinstance(right, tuple) else (right,))))
        elif operator == "**" and any(abs(one) > MOST_NUMBER for one in counts):
            raise too_much(f"{MOST_NUMBER} in a power")
        elif operator == "**" and len(counts) == 2 and abs(counts[1]) > 64:
            raise too_much("64 as an exponent")
        elif operator == "*" and sizes and counts and sizes[0] * counts[0] > MOST_SIZE:
            raise too_much(f"{MOST_SIZE} characters or items in a value")
        return checked(super().call_binop(context, operator, left, right))


def bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter with checks of its arguments and its result."""

    @functools.wraps(function)
    def filtered(*args: Any, **kwargs: Any) -> Any:
        values = [one for one in args if not isinstance(one, jinja2.runtime.Context)]
        sizes = [len(one) for one in values if isinstance(one, str | Sequence | Mapping)]
        spent.get().add(1 + sum(sizes) // ITEMS_PER_STEP, 0)
        filtered_value = () if isinstance(values[0], int | float) else values[:1]
        check_arguments((*filtered_value, *values[1:], *kwargs.values()))
        return checked(function(*args, **kwargs))

    return filtered


class GenerationBlock(jinja2.ext.Extension):
    """Read {% generation %} ... {% endgeneration %}, which marks training text, as its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> jinja2.nodes.Scope:
        """Return the block's body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def raise_exception(message: str) -> None:
    """Raise jinja2.TemplateError with a template's own message."""
    raise jinja2.TemplateError(message)


def to_json(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON, without jinja's escapes for HTML."""
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@functools.cache
def environment() -> Environment:
    """Return the environment that compiles every template."""
    made = Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationBlock, jinja2.ext.loopcontrols],
        finalize=shown,
        optimized=False,  # constants are not computed before the work is counted
    )
    made.filters["tojson"] = to_json
    kept = {name: one for name, one in made.filters.items() if name not in UNSAFE}
    made.filters = {name: bounded(function) for name, function in kept.items()}
    del made.globals["lipsum"]
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


@functools.lru_cache(32)
def compile_template(source: str) -> jinja2.Template:
    """Return a compiled template."""
    return environment().from_string(source)
