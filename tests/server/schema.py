"""Values that a JSON schema allows, and values that no schema would."""

from typing import Any

from hypothesis import strategies as st

ODD = ("", "\ud800", "\x00", "{{ 7 * 7 }}", "../../etc/passwd", "a" * 400, "import os", "é𝄞")
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**31, 2**63, -(2**63), 2**64, 10**400, 0, -1, 1]),
    st.floats(),
    st.sampled_from(ODD),
    st.lists(st.one_of(st.integers(), st.sampled_from(ODD), st.none()), max_size=4),
    st.dictionaries(
        st.sampled_from(["a", "0", "type", "role", "\udfff"]), st.integers(), max_size=2
    ),
    st.just([[[]]]),
    st.just({"a": {"b": {"c": []}}}),
)


def values(schema: dict[str, Any], document: dict[str, Any]) -> st.SearchStrategy:
    """Return a strategy for values of a schema (the part of JSON schema that pydantic writes)."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return st.deferred(lambda: values(document["components"]["schemas"][name], document))
    if "anyOf" in schema:
        return st.one_of([values(one, document) for one in schema["anyOf"]])
    if "pattern" in schema:
        return st.from_regex(schema["pattern"], fullmatch=True)
    kind = schema.get("type")
    least, most = schema.get("minimum"), schema.get("maximum", schema.get("exclusiveMaximum"))
    if kind == "integer":
        near = st.integers(0 if least is None else least, 300)
        return st.one_of(near, st.integers(least, None if most is None else most - 1))
    if kind == "number":
        return st.one_of(st.floats(0, 2), st.floats(allow_nan=False, allow_infinity=False))
    if kind == "string":
        return st.one_of(st.sampled_from(["import os", "def f", *ODD]), st.text(max_size=8))
    if kind == "boolean":
        return st.booleans()
    if kind == "array":
        items = values(schema["items"], document)
        return st.lists(items, min_size=schema.get("minItems", 0), max_size=4)
    if kind == "object" and "properties" in schema:
        fields = {name: values(one, document) for name, one in schema["properties"].items()}
        needed = set(schema.get("required", ()))
        some = {name: one for name, one in fields.items() if name not in needed}
        return st.fixed_dictionaries({n: fields[n] for n in needed}, optional=some)
    if kind == "object":
        return st.dictionaries(st.sampled_from(["0", "5", "259", "a"]), JUNK, max_size=2)
    return st.none() if kind == "null" else JUNK
