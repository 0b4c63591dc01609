"""Chats render as transformers renders them; what is malformed or hostile is refused."""

import json

import pytest

from specjax.engine.tokenizer import load_tokenizer
from tests.engine.backends import byte_level

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
        ([{"role": "robot", "content": "a"}], "role must be one of .* got 'robot'"),
        ([{"content": "a"}], "role must be one of .* got None"),
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
