"""Chats render as transformers renders them; what is malformed or hostile is refused."""

import json

import pytest

from specjax.engine.text.chat import load_chat_templates
from specjax.engine.text.tokenizer import load_tokenizer
from tests.engine.text.backends import byte_level

CHAT = (
    "{%- for message in messages %}\n"
    "    {%- if loop.first and message.role != 'system' %}\n"
    "        {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}\n"
    "    {%- endif %}\n"
    "    {%- if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if tools %}{{ tools | tojson }}{% endif %}\n"
    "    {% if add_generation_prompt %}\n"
    "    {% endif %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "    {%- if enable_thinking is false %}{{ '<think>' }}{% endif %}\n"
    "{%- endif %}\n"
)


@pytest.fixture(scope="module")
def chat(load):
    return load(byte_level(), tokenizer_config={"eos_token": "<|im_end|>", "chat_template": CHAT})


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <b> & é?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Why?"},
]


@pytest.mark.parametrize("messages", [MESSAGES, MESSAGES[1:2]])
@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": False}, {"tools": [{"a": "é<"}]}])
@pytest.mark.parametrize("prompt", [True, False])
def test_chat_renders_as_in_transformers(chat, messages, kwargs, prompt):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), eos_token="<|im_end|>", chat_template=CHAT
    )
    expected = theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=prompt, **kwargs
    )
    assert chat.apply_chat_template(messages, prompt, **kwargs) == expected


def test_text_parts_are_their_joined_text(chat):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    plain = [{"role": "user", "content": "a\nb"}]
    assert chat.apply_chat_template([{"role": "user", "content": parts}]) == (
        chat.apply_chat_template(plain)
    )


def test_templates_come_from_a_list_or_a_file_or_the_caller(load, tmp_path):
    listed = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    tokenizer = load(byte_level(), tokenizer_config={"chat_template": listed})
    assert tokenizer.apply_chat_template(MESSAGES) == "D"
    assert tokenizer.apply_chat_template(MESSAGES, tools=[{"name": "f"}]) == "T"
    assert tokenizer.apply_chat_template(MESSAGES, chat_template="C") == "C"
    byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old"}))
    (tmp_path / "chat_template.jinja").write_text(
        "{% generation %}{{ eos_token }}{% endgeneration %}{{ strftime_now('%Y')|length }}"
    )
    assert load_tokenizer(tmp_path).apply_chat_template(MESSAGES) == "4"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "non-empty list"),
        ([{"role": 5, "content": "a"}], "role must be a string, got 5"),
        ([{"content": "a"}], "role must be a string, got None"),
        ([{"role": "user"}], "the user message has no content"),
        (
            [{"role": "user", "content": 3}],
            "content must be a string or a list of text parts, got 3",
        ),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "specjax reads text only"),
        ([{"role": "tool", "content": "a"}], "chat template refused the messages: no tools"),
    ],
)
def test_a_malformed_chat_is_one_clear_error(chat, messages, words):
    with pytest.raises(ValueError, match=words):
        chat.apply_chat_template(messages)


@pytest.mark.parametrize(
    ("template", "words"),
    [("{% if %}", "not valid jinja"), ("{{ messages.__class__.__mro__ }}", "unsafe")],
)
def test_a_broken_or_hostile_template_is_an_error(chat, template, words):
    with pytest.raises(ValueError, match=words):
        chat.apply_chat_template(MESSAGES, chat_template=template)


def test_without_a_template_the_error_says_what_to_do(kinds):
    with pytest.raises(ValueError, match="no chat template: use generate"):
        kinds["word_level"].apply_chat_template(MESSAGES)


WORK = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) if range(99999)|sum > 5 %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% set ns = namespace(s='a') %}{% for i in range(60) %}{%set ns.s=ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s='a') %}{% for i in range(60) %}{%set ns.s=ns.s + ns.s %}{% endfor %}",
    "{% set x %}{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}{% endset %}",
    "{{ 'a' * 10**9 }}",
    "{{ 'a'|center(10**9) }}",
    "{{ 'a'.center(10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ ''.join(['a' * 10000] * 10000) }}",
    "{{ ('a' * 99999)|replace('a', 'b' * 99999) }}",
    "{% for i in range(3) recursive %}{{ loop(range(3)) }}{% endfor %}",
)


@pytest.mark.parametrize("template", WORK)
def test_a_template_that_works_without_end_is_refused(chat, template, monkeypatch):
    monkeypatch.setattr("specjax.engine.text.sandbox.MOST_STEPS", 5000)
    with pytest.raises(ValueError, match="too much work"):
        chat.apply_chat_template([{"role": "user", "content": "a"}], chat_template=template)


def test_limits_leave_real_work_alone(chat):
    turns = [{"role": "user", "content": "word " * 200, "time": 1_700_000_000}] * 500
    template = (
        "{% for m in messages if m.role != 'x' %}{{ m.role ~ ':' + m.content|trim }}"
        "{{ m.time|string }}{{ m.time|tojson }}{{ m|tojson|length }}{% endfor %}"
        "{{ messages|map(attribute='role')|unique|join(',') }}"
    )
    text = chat.apply_chat_template(turns, chat_template=template)
    assert text.endswith("user")
    assert text.count("1700000000") == 1000


@pytest.mark.parametrize("listed", [["a"], [{"x": 1}], 5, [{"name": "default", "template": 3}]])
def test_malformed_templates_of_a_checkpoint_are_one_clear_error(tmp_path, listed):
    with pytest.raises(ValueError, match=r"chat_template in .* must be a text"):
        load_chat_templates(tmp_path, {"chat_template": listed})
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"chat_template.jinja is not UTF-8"):
        load_chat_templates(tmp_path, {})
