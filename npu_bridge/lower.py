"""Lower a JAX function to a PyTorch program by interpreting its jaxpr on fx proxies.

Primitives are lowered by ``rules``. A fusible op (a function of ``specjax.core.ops``, which is in
the jaxpr under its own name) becomes a fused kernel of the plan (``plans``); if the kernel does not
take it, the op is decomposed into primitives, and the report has the reason. Values that depend on
random keys are not lowered: a JAX function computes them on the host beforehand, and they are
operands of the program.
"""

import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.extend import core
from torch import fx

from npu_bridge import indexing  # noqa: F401 (enters its rules)
from npu_bridge.plans import PLANS
from npu_bridge.report import FusibleOp, Report
from npu_bridge.rules import RULES, Equation, Operand, Refused, aten, call, constant, to_dtype
from npu_bridge.tensors import to_torch
from npu_bridge.torch_kernels import Unfit
from specjax.kernels.primitive import FORMS

RANDOM = ("random_", "threefry", "rng_", "shift_right_logical")
INLINE = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat"}


def is_call(name: str) -> bool:
    """Return whether a primitive is a call of a jaxpr, or one with a plain form (``FORMS``)."""
    return name in INLINE or name in FORMS


class Value(NamedTuple):
    """The value of a jaxpr's variable: a tensor or proxy on the device, a Deferred on the host."""

    device: Any  # None: it depends on random keys
    host: "Deferred | None"  # None: it depends on weights or on the cache


class HostLengths(NamedTuple):
    """An operand that is a host list of integers: an int32 argument plus a constant."""

    argument: int  # which flat argument
    offset: int


@dataclass(frozen=True)
class Program:
    """A lowered function; call it with arguments of the same shapes. It overwrites donated ones."""

    module: fx.GraphModule
    report: Report
    noise: Callable[[Sequence[Any]], Sequence[jax.Array]] | None  # flat arguments -> operands
    lengths: tuple[HostLengths, ...]
    wanted: tuple[int, ...]  # the flat arguments the module reads
    out_tree: Any

    def __call__(self, *args: Any) -> Any:
        """Return the results as tensors, given tensors or arrays."""
        with torch.no_grad():
            results = self.module(*self.operands(jax.tree.leaves(args)))
        return jax.tree.unflatten(self.out_tree, results)

    def operands(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the module's operands of the flat arguments; those read on the host are arrays."""
        lists = [
            [length + extra.offset for length in leaves[extra.argument].tolist()]
            for extra in self.lengths
        ]
        noise = () if self.noise is None else self.noise(leaves)
        given = [*(leaves[i] for i in self.wanted), *noise]
        return [*(to_torch(x, self.report.device) for x in given), *lists]

    def export(self, *args: Any) -> torch.export.ExportedProgram:
        """Return the program exported by ``torch.export``; host lists of lengths become constants.

        ``jax.ShapeDtypeStruct`` may stand for weights.
        """
        leaves = [
            torch.empty(leaf.shape, dtype=to_dtype(leaf.dtype))
            if isinstance(leaf, jax.ShapeDtypeStruct)
            else leaf
            for leaf in jax.tree.leaves(args)
        ]
        with torch.no_grad():
            return torch.export.export(self.module, tuple(self.operands(leaves)))


def lower(
    function: Callable[..., Any],
    args: Sequence[Any],
    *,
    donate: Sequence[int] = (),
    host: Sequence[int] = (),
    device: str = "cpu",
    plan: str | None = None,
    most_top_k: int | None = None,
    name: str | None = None,
) -> Program:
    """Return ``function`` as a PyTorch program, for arguments of the shapes of ``args``.

    Args:
        function: of arrays; it must be traceable by JAX.
        args: arrays or ``jax.ShapeDtypeStruct``.
        donate: arguments whose arrays the program may overwrite; caches are written in place,
            and the caller must check that all slots are in bounds.
        host: arguments that are on the host too when the program is called, such as random keys.
        device: of the constants, "cpu" or "npu".
        plan: which fused kernels to use, of ``plans.PLANS``; by default those of the device.
        most_top_k: an upper bound of top_k, if one is known.
        name: for the report.

    Raises:
        Refused: a primitive has no rule; the message has its name and shapes.
        ValueError: there is no such plan.
    """
    start = time.perf_counter()
    plan = plan or ("npu" if device.startswith("npu") else "torch")
    if plan not in PLANS:
        raise ValueError(f"plan={plan!r} is not one of {sorted(PLANS)}.")
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    sizes = [len(jax.tree.leaves(arg)) for arg in args]
    which = [i for i, size in enumerate(sizes) for _ in range(size)]
    report = Report(name or getattr(function, "__name__", "program"), device, plan)
    lowering = Lowering(report, [i in donate for i in which], [i in host for i in which])
    lowering.most_top_k = most_top_k
    graph, root, noise = lowering.build(closed)
    module = fx.GraphModule(root, graph)
    wanted = tuple(sorted(lowering.placeholders))
    report.describe(module, closed.jaxpr.invars, wanted)
    report.seconds = time.perf_counter() - start
    out_tree = jax.tree.structure(shapes)
    if torch.device(device).type != "cpu":
        module = module.to(device)
    return Program(module, report, noise, tuple(lowering.lengths), wanted, out_tree)


@dataclass
class Scope:
    """One jaxpr while it is interpreted; kernels may look ahead in it."""

    eqns: Sequence[Any]
    env: dict[Any, Value]
    uses: Counter
    position: int = 0
    done: set[int] = field(default_factory=set)
    shared: set[Any] = field(default_factory=set)  # variables that something outside still reads

    def get(self, atom: Any) -> Value:
        """Return the value of an operand."""
        if isinstance(atom, core.Literal):
            return known(atom.val)
        return self.env[atom]

    def put(self, variable: Any, device: Operand) -> None:
        """Set the value of a variable that a later equation defines."""
        self.env[variable] = Value(device, None)

    def mine(self, eqn: Equation) -> list[bool]:
        """Return which operands nothing but this equation reads."""
        return [
            not isinstance(v, core.Literal) and v not in self.shared and self.uses[v] == 1
            for v in eqn.invars
        ]


def known(value: Any) -> Value:
    """Return a constant as a ``Value``."""
    host = Deferred(lambda: value)
    return Value(None if is_key(jax.typeof(value)) else constant(value), host)


def is_key(aval: Any) -> bool:
    """Return whether an abstract value is a random key."""
    return jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)


class Lowering:
    """An interpreter of a jaxpr, which writes an fx graph."""

    def __init__(self, report: Report, donated: Sequence[bool], on_host: Sequence[bool]):
        self.report, self.may_donate = report, donated
        self.tracer = fx.Tracer()
        self.tracer.root, self.tracer.graph = torch.nn.Module(), fx.Graph()
        self.tracer.tensor_attrs = {}
        self.placeholders: dict[int, fx.Proxy] = {}
        self.donated: set[fx.Node] = set()  # tensors that may be overwritten
        self.noise: list[tuple[fx.Proxy, Deferred]] = []
        self.lengths: list[HostLengths] = []
        self.length_operands: list[fx.Proxy] = []
        self.on_host = {i: Deferred(lambda: None) for i, yes in enumerate(on_host) if yes}
        self.plan = PLANS[report.plan]
        self.causal: dict[fx.Node, tuple[Any, int]] = {}  # masks: (lengths, nodes)
        self.memo: dict[Any, Any] = {}
        self.most_top_k: int | None = None

    def build(
        self, closed: core.ClosedJaxpr
    ) -> tuple[fx.Graph, torch.nn.Module, Callable[[Sequence[Any]], Sequence[jax.Array]] | None]:
        """Return the graph of a jaxpr, its constants, and ``Program.noise``."""
        arguments = [self.argument(i, var.aval) for i, var in enumerate(closed.jaxpr.invars)]
        constants = [known(const) for const in closed.consts]
        results = self.run(closed.jaxpr, constants, arguments, [True] * len(arguments))
        outputs = [self.on_device(value) for value in results]
        self.tracer.create_node("output", "output", (self.tracer.create_arg(outputs),), {})
        graph, root = self.tracer.graph, self.tracer.root
        for name, value in vars(root).copy().items():
            if isinstance(value, torch.Tensor):  # torch.export saves no views of other tensors
                setattr(root, name, value.clone(memory_format=torch.contiguous_format))
        graph.eliminate_dead_code()
        self.order_placeholders()
        graph.lint()
        return graph, root, self.make_noise()

    def empty(self, aval: Any) -> Value:
        """Return an array without elements, which ``torch.export`` cannot save as a constant."""
        args = constant(np.zeros((), aval.dtype)), list(aval.shape)  # where the constants are
        proxy = self.tracer.create_proxy("call_function", aten.new_zeros.default, args, {})
        return Value(proxy, Deferred(lambda: np.zeros(aval.shape, aval.dtype)))

    def argument(self, i: int, aval: Any) -> Value:
        """Return the value of flat argument i."""
        host = self.on_host.get(i)
        if is_key(aval):
            if host is None:
                raise Refused(f"argument {i} is a random key: name it in host=.")
            return Value(None, host)
        to_dtype(aval.dtype)
        proxy = self.tracer.create_proxy("placeholder", f"arg{i}", (), {})
        self.placeholders[i] = proxy
        if self.may_donate[i]:
            self.donated.add(proxy.node)
        return Value(proxy, host)

    def order_placeholders(self) -> None:
        """Remove arguments that are not read, and order noise and lengths after the others."""
        graph, first = self.tracer.graph, next(iter(self.tracer.graph.nodes))
        for i, proxy in list(self.placeholders.items()):
            if not proxy.node.users:
                graph.erase_node(proxy.node)
                del self.placeholders[i]
        behind = [proxy for _, proxy in sorted(self.placeholders.items())]
        behind += [proxy for proxy, _ in self.noise] + self.length_operands
        first = next(iter(graph.nodes))
        for proxy in behind:
            if proxy.node is not first:
                first.prepend(proxy.node)
            else:
                first = first.next

    def make_noise(self) -> Callable[[Sequence[Any]], Sequence[jax.Array]] | None:
        """Return the JAX function that computes the values that depend on random keys."""
        if not self.noise:
            return None
        wanted, used = [host for _, host in self.noise], list(self.on_host)

        @jax.jit
        def compute(*arguments):
            memo = dict(zip(self.on_host.values(), arguments, strict=True))
            return [one.evaluate(memo) for one in wanted]

        return lambda leaves: compute(*(leaves[i] for i in used))

    def on_device(self, value: Value) -> Operand:
        """Return a value as an operand; one that only the host can compute becomes an argument."""
        if value.device is not None:
            return value.device
        for proxy, host in self.noise:
            if host is value.host:
                return proxy
        assert value.host is not None
        proxy = self.tracer.create_proxy("placeholder", f"noise{len(self.noise)}", (), {})
        self.noise.append((proxy, value.host))
        return proxy

    def run(
        self,
        jaxpr: Any,
        constants: Sequence[Value],
        arguments: Sequence[Value],
        mine: Sequence[bool],
    ) -> list[Value]:
        """Return a jaxpr's results; ``mine`` marks arguments that nothing outside reads again."""
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))
        atoms = [*(v for eqn in jaxpr.eqns for v in eqn.invars), *jaxpr.outvars]
        uses = Counter(v for v in atoms if not isinstance(v, core.Literal))
        scope = Scope(jaxpr.eqns, env, uses)
        scope.shared = {v for v, own in zip(jaxpr.invars, mine, strict=True) if not own}
        for position, eqn in enumerate(jaxpr.eqns):
            scope.position = position
            if position not in scope.done:
                self.equation(scope, eqn)
        return [scope.get(v) for v in jaxpr.outvars]

    def equation(self, scope: Scope, eqn: Equation) -> None:
        """Lower one equation."""
        name, values = eqn.primitive.name, [scope.get(v) for v in eqn.invars]
        mine = scope.mine(eqn)
        op = eqn.params.get("name") if is_call(name) else None
        on_host = all(value.host is not None for value in values)
        if eqn.outvars and not any(variable.aval.size for variable in eqn.outvars):  # no layer taps
            results = [self.empty(variable.aval) for variable in eqn.outvars]
        elif on_host and any(value.device is None for value in values):
            results = [Value(None, host) for host in put_off(eqn, values)]
        elif op in self.plan or name in self.plan:
            results = self.fuse(scope, eqn, op or name, values, mine)
        elif is_call(name):
            results = self.inline(eqn, values, mine)
        elif name == "scan":
            results = self.unroll(scope, eqn, values, mine)
        else:
            results = self.record(eqn, values)
        scope.env.update(zip(eqn.outvars, results, strict=True))
        lent = [value.device for value, own in zip(values, mine, strict=True) if not own]
        for variable, value in zip(eqn.outvars, results, strict=True):
            if any(value.device is one for one in lent):  # passed on, and still read
                scope.shared.add(variable)

    def fuse(
        self, scope: Scope, eqn: Equation, op: str, values: Sequence[Value], mine: Sequence[bool]
    ) -> list[Value]:
        """Lower a fusible op to the plan's kernel, or decompose it; the report has the reason."""
        operands = [self.on_device(value) for value in values]
        if is_call(eqn.primitive.name) and all(isinstance(x, torch.Tensor) for x in operands):
            return self.inline(eqn, values, mine)
        try:
            made, kernel = self.plan[op](self, scope, eqn, operands, mine)
        except Unfit as unfit:
            if unfit.why is not None:
                self.report.add(FusibleOp(op, None, unfit.why))
            if is_call(eqn.primitive.name):
                return self.inline(eqn, values, mine)
            return self.record(eqn, values)
        if kernel is not None:
            self.report.add(FusibleOp(op, kernel, None))
        return self.with_twins(eqn, values, made)

    def with_twins(
        self, eqn: Equation, values: Sequence[Value], made: Iterable[Operand]
    ) -> list[Value]:
        """Return an equation's results, also as computed on the host if all operands are there."""
        if any(value.host is None for value in values):
            return [Value(one, None) for one in made]
        return [Value(one, host) for one, host in zip(made, put_off(eqn, values), strict=True)]

    def inline(self, eqn: Equation, values: Sequence[Value], mine: Sequence[bool]) -> list[Value]:
        """Lower a call by lowering the body of its function."""
        body = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
        if eqn.primitive.name in FORMS:
            shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
            body = jax.make_jaxpr(FORMS[eqn.primitive.name])(*shapes)
        inner = getattr(body, "jaxpr", body)
        constants = [known(const) for const in getattr(body, "consts", ())]
        return self.run(inner, constants, values, mine)

    def unroll(
        self, scope: Scope, eqn: Equation, values: list[Value], mine: list[bool]
    ) -> list[Value]:
        """Lower a scan, unrolled."""
        p = eqn.params
        num_consts, num_carry, length = p["num_consts"], p["num_carry"], p["length"]
        split = num_consts + num_carry
        consts, carry, columns = values[:num_consts], values[num_consts:split], values[split:]
        own = [False] * num_consts + mine[num_consts:split] + [True] * len(columns)
        body, stacked = p["jaxpr"], []
        inner_consts = [known(const) for const in body.consts]
        for step in reversed(range(length)) if p["reverse"] else range(length):
            rows = [self.row(value, step) for value in columns]
            results = self.run(body.jaxpr, inner_consts, [*consts, *carry, *rows], own)
            carry = results[:num_carry]
            stacked.append(results[num_carry:])
        if p["reverse"]:
            stacked.reverse()
        return [*carry, *(self.stack(list(column)) for column in zip(*stacked, strict=True))]

    def overwrite(self, leaf: fx.Proxy, mine: bool) -> None:
        """Count a cache leaf that is written in place; raises Unfit if it may not be."""
        if not mine or leaf.node not in self.donated:
            raise Unfit("the cache is not donated, or is read again: it is copied")
        self.report.in_place += 1

    def row(self, value: Value, step: int) -> Value:
        """Return one iteration's part of a stacked value."""
        device = None if value.device is None else call(aten.select.int, value.device, 0, step)
        host = None
        if value.host is not None:
            host = Deferred(operator.itemgetter(step), (value.host,))
        return Value(device, host)

    def stack(self, column: list[Value]) -> Value:
        """Return the iterations' results, stacked."""
        hosts, host = [value.host for value in column if value.host is not None], None
        if len(hosts) == len(column):
            host = Deferred(lambda *rows: jnp.stack(rows), tuple(hosts))
        if host is not None and any(value.device is None for value in column):
            return Value(None, host)
        return Value(call(torch.stack, [self.on_device(value) for value in column]), host)

    def record(self, eqn: Equation, values: Sequence[Value]) -> list[Value]:
        """Lower a primitive by its rule."""
        name = eqn.primitive.name
        self.report.primitives[name] += 1
        if name not in RULES:
            shapes = ", ".join(v.aval.str_short() for v in eqn.invars)
            why = "there is no rule for it in npu_bridge.rules"
            if name in ("while", "cond"):
                why = "the number of steps of a program must be static"
            if name.startswith(RANDOM):
                why = "random numbers are made on the host: name the keys in host="
            raise Refused(f"primitive {name!r} of ({shapes}) cannot be lowered: {why}.")
        if any(
            value.device is None and is_key(v.aval)
            for value, v in zip(values, eqn.invars, strict=True)
        ):
            raise Refused(f"primitive {name!r} mixes random keys with what only the device knows.")
        made = RULES[name](eqn, *(self.on_device(value) for value in values))
        return self.with_twins(eqn, values, made if isinstance(made, tuple) else (made,))

    def host_lengths(self, lengths: fx.Proxy, nodes: int) -> fx.Proxy:
        """Return the host list ``lengths + nodes``; raises Unfit if the device computes it."""
        argument, offset = self.origin(lengths, nodes)
        wanted = HostLengths(argument, offset)
        if wanted not in self.lengths:
            name = f"kv_lengths{len(self.lengths)}"
            self.length_operands.append(self.tracer.create_proxy("placeholder", name, (), {}))
            self.lengths.append(wanted)
        return self.length_operands[self.lengths.index(wanted)]

    def origin(self, lengths: fx.Proxy, offset: int) -> tuple[int, int]:
        """Return the argument that lengths are, and what is added to it."""
        node: Any = lengths.node
        while node.op == "call_function" and node.target is torch.add:
            numbers = [x for x in node.args if isinstance(x, int)]
            if len(numbers) != 1:
                break
            offset += numbers[0]
            node = next(x for x in node.args if not isinstance(x, int))
        for i, proxy in self.placeholders.items():
            if proxy.node is node:
                return i, offset
        raise Unfit("its lengths are computed on the device")


@dataclass(frozen=True, eq=False)
class Deferred:
    """A value that JAX computes on the host, lazily."""

    compute: Callable[..., Any]
    inputs: tuple["Deferred", ...] = ()

    def evaluate(self, memo: dict["Deferred", Any]) -> Any:
        """Return the value, computed once per memo; arguments are in the memo already."""
        if self not in memo:
            memo[self] = self.compute(*(one.evaluate(memo) for one in self.inputs))
        return memo[self]


def put_off(eqn: Equation, values: Sequence[Value]) -> list[Deferred]:
    """Return an equation's results as lazily computed on the host, where all operands are."""

    def bind(*operands):
        with eqn.ctx.manager:
            made = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
        return made if eqn.primitive.multiple_results else [made]

    whole = Deferred(bind, tuple(value.host for value in values if value.host is not None))
    return [Deferred(operator.itemgetter(i), (whole,)) for i in range(len(eqn.outvars))]
