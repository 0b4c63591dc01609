"""The documentation is true: its code runs, its commands parse, its links and names exist."""

import ast
import doctest
import importlib
import re
import shlex
import sys
import tomllib
import unicodedata
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import typer
import yaml

from specjax import __version__
from specjax.cli.app import app
from specjax.cli.train_heads import training_app
from specjax.course.__main__ import new_parser
from specjax.launch.__main__ import new_parser as launch_parser

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "tools"))

import figures  # noqa: E402 (of docs/tools)
import import_graph  # noqa: E402 (of docs/tools)
import reference  # noqa: E402

PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LIVING = [page for page in PAGES if page.name != "CHANGELOG.md"]  # the others tell of now
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
GENERATED = {DOCS / path for path in reference.pages(ROOT)} | {
    DOCS / "notebooks" / f"{name}.md"
    for name in ["index", *(path.stem for path in (ROOT / "notebooks").glob("*.py"))]
}
GENERATED |= {
    DOCS / "notebooks" / f"{path.stem}.zh.md" for path in (ROOT / "notebooks").glob("*.py")
}
GENERATED |= {DOCS / "explorer.html", DOCS / "notebooks" / "gallery.md"}
GENERATED |= {DOCS / "slides" / f"{path.stem}.html" for path in (ROOT / "notebooks").glob("*.py")}
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
SHELL = ("sh", "bash", "console")
# commands that are not ours
OTHERS = (".", "curl", "guidellm", "jupyter", ".venv/bin/python", "pre-commit", "serve", "vllm")
README_LINES = 180


class Block(NamedTuple):
    """A fenced block of a page."""

    kind: str
    text: str
    why: str | None  # it is not run


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, *kinds: str) -> list[Block]:
    found = [Block(m["kind"], m["text"], m["why"]) for m in BLOCK.finditer(read(page))]
    return [block for block in found if block.kind in kinds]


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return BLOCK.sub("", read(page))


def inline_code(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(page))


def every(*kinds: str) -> list:
    """Return the pages that have blocks of some kinds, as parameters."""
    return [pytest.param(page, id=name(page)) for page in PAGES if blocks(page, *kinds)]


def headings(text: str) -> list[tuple[int, str]]:
    return [(len(m[1]), m[2]) for m in re.finditer(r"^(#+) (.+)$", text, re.MULTILINE)]


def slug(heading: str) -> str:
    """Return the anchor that MkDocs makes of a heading."""
    text = re.sub(r"[`*]|\\[()]", "", heading)
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


# Links


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_and_anchor_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = target.partition("#")
        if target.startswith(("http:", "https:")):
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists() or file in GENERATED, target
        if anchor:
            assert anchor in [slug(text) for _, text in headings(prose(file))], target


def test_every_page_is_in_the_navigation():
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_multi_constructor("", lambda *_: None)
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=loader)["nav"]

    def leaves(entry):
        if isinstance(entry, str):
            return [entry]
        values = entry.values() if isinstance(entry, dict) else entry
        return [leaf for value in values for leaf in leaves(value)]

    listed = [leaf for leaf in leaves(nav) if leaf.endswith(".md")]
    assert sorted(listed) == sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))


# Code


@pytest.mark.parametrize("page", every("python", "pycon"))
def test_python_blocks_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for number, block in enumerate(blocks(page, "python", "pycon")):
        where = f"{name(page)}, block {number + 1}"
        if block.why:
            compile(block.text, where, "exec")
        elif block.kind == "python":
            exec(compile(block.text, where, "exec"), names)
        else:
            asked = doctest.DocTestParser().get_doctest(block.text, names, where, None, 0)
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            runner.run(asked, clear_globs=False)
            assert runner.failures == 0
            names |= asked.globs


# Commands


def commands(text: str) -> list[list[str]]:
    """Return a shell block's commands as words; a pipe's and a list's parts are one each."""
    words = [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines()]
    found: list[list[str]] = []
    for line in filter(None, words):
        found.append([])
        for word in line:
            if word in ("|", "&&", "||", ";"):
                found.append([])
            else:
                found[-1].append(word)
    return found


def ours(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return a command of specjax, and the words that are for it."""
    command, rest = typer.main.get_command(app), list(words)
    if rest[:1] == ["train"]:
        command, rest = typer.main.get_command(training_app()), rest[1:]
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"specjax {' '.join(words)}: no {rest[0]!r}"
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def targets() -> set[str]:
    """Return what the Makefile can make."""
    (phony,) = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return set(phony.split())


@pytest.mark.parametrize("page", every(*SHELL))
def test_commands_of_blocks_parse(page):
    for block in blocks(page, *SHELL):
        for words in commands(block.text):
            while "=" in words[0]:  # a variable of the shell
                words = words[1:]
            if words[:3] == ["python", "-m", "specjax.server"]:
                words = ["specjax", "serve", *words[3:]]
            if words[:3] == ["python", "-m", "specjax.course"]:
                new_parser().parse_args(words[3:])
            elif words[:3] == ["python", "-m", "specjax.launch"]:
                given = launch_parser().parse_args(words[3:])
                command, rest = ours(given.command)
                command.make_context("specjax", rest)
            elif words[0] == "specjax":
                command, rest = ours(words[1:])
                command.make_context("specjax", rest)
            elif words[0] == "make":
                assert {word for word in words[1:] if "=" not in word} <= targets(), words
            elif words[:2] == ["pip", "install"]:
                wanted = re.findall(r"specjax\[([\w,]+)\]", " ".join(words))
                assert {one for each in wanted for one in each.split(",")} <= EXTRAS.keys(), words
            else:
                assert words[0] in OTHERS, f"{words[0]}: whose command is this?"


@pytest.mark.parametrize("page", LIVING, ids=name)
def test_commands_in_the_text_exist(page):
    for code in inline_code(page):
        words = code.split()
        if words[0] == "make" and len(words) == 2:
            assert words[1] in targets(), code
        for extra in re.findall(r"specjax\[(\w+)\]", code):
            assert extra in EXTRAS, code
        if words[0] == "specjax" and len(words) > 1 and words[1].islower():
            command, rest = ours(words[1:])
            known = {"--help", *(name for one in command.params for name in one.opts)}
            assert {word for word in rest if word.startswith("--")} <= known, code


# Names


@pytest.mark.parametrize("page", LIVING, ids=name)
def test_every_module_and_path_that_is_named_exists(page):
    for code in inline_code(page):
        called = code.partition("(")[0]
        if re.fullmatch(r"(specjax|npu_bridge|tests|notebooks|docs)/[\w./-]*", code):
            assert (ROOT / code).exists(), code
        elif re.fullmatch(r"(specjax|npu_bridge)(\.\w+)+", called):
            assert find(called), code
        elif re.fullmatch(r"test_\w+\.py", code):
            assert list((ROOT / "tests").rglob(code)), code


def find(dotted: str) -> bool:
    """Say whether a dotted name is a module, or something in one."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_every_paper_that_the_code_cites_by_number_is_in_the_references():
    listed = read(DOCS / "references.md")
    for folder in ("specjax", "npu_bridge", "notebooks"):
        for file in (ROOT / folder).rglob("*.py"):
            for number in re.findall(r"arXiv[:\s]+(\d{4}\.\d{5})", read(file)):
                assert number in listed, f"{name(file)}: {number}"


# README and its neighbours


def test_the_readme_is_short():
    assert len(read(ROOT / "README.md").splitlines()) <= README_LINES


def test_the_chinese_readme_is_in_step():
    """The same headings, commands, tree and links, in the same order."""
    english, chinese = ROOT / "README.md", ROOT / "README.zh.md"

    def shape(page):
        text = prose(page)
        links = [t for t in re.findall(r"\]\(([^)\s]+)\)", text) if not t.startswith("README")]
        code = [commands(block.text) for block in blocks(page, *SHELL)]
        lines = [line for block in blocks(page, "text") for line in block.text.splitlines()]
        python = [ast.dump(ast.parse(block.text)) for block in blocks(page, "python")]
        levels = [level for level, _ in headings(text)]
        return levels, links, code, [line.split()[0] for line in lines], python

    assert shape(chinese) == shape(english)


@pytest.mark.parametrize("page", ["README.md", "docs/how/packages.md"])
def test_the_tree_has_a_line_for_every_package(page):
    found = {one.parent.name for one in (ROOT / "specjax").glob("*/__init__.py")}
    shown = set(re.findall(r"^(?:\| `)?specjax/(\w+)/", read(ROOT / page), re.MULTILINE))
    assert shown == found


def test_the_figures_of_the_floor_plan_are_those_of_the_page():
    """Else: python docs/tools/figures.py 3bbb165; types are given wherever others call."""
    shown = dict(re.findall(r"^\| (.+?) \| \d+ \| (\d+) \|$", read(DOCS / "how/packages.md"), re.M))
    counted = figures.figures(ROOT)
    assert {name: int(shown[name]) for name in counted} == counted
    for name in ("circles of imports", "public parameters without a type"):
        assert counted[name] == 0, name
    assert counted["`Callable` without types, in public fields and parameters"] == 0


def test_the_import_graph_is_current():
    """Else: python docs/tools/import_graph.py."""
    graph = import_graph.read_graph(ROOT)
    assert read(import_graph.PICTURE) == import_graph.draw(graph)
    assert read(import_graph.PAGE) == import_graph.with_table(read(import_graph.PAGE), graph)


def test_the_import_graph_sees_a_circle():
    with pytest.raises(ValueError, match="import each other"):
        import_graph.levels({"a": {"b"}, "b": {"a"}, "c": set()})


def test_all_is_what_users_may_need():
    parts = {
        need
        for extra in ("serve", "structured", "ab", "bridge", "notebooks")
        for need in EXTRAS[extra]
    }
    assert set(EXTRAS["all"]) == parts


def test_version_address_and_pythons_are_the_same_everywhere():
    citation = yaml.safe_load(read(ROOT / "CITATION.cff"))
    assert citation["version"] == __version__
    address = PROJECT["urls"]["Repository"]
    assert citation["repository-code"] == address
    for file in ("mkdocs.yml", ".github/ISSUE_TEMPLATE/config.yml"):
        assert address in (ROOT / file).read_text()
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    tested = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    promised = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if "3." in one]
    assert tested == promised


def test_the_changelog_goes_by_release():
    releases = [text for level, text in headings(read(ROOT / "CHANGELOG.md")) if level == 2]
    assert releases[0].split()[0] == __version__
    for release in releases:
        assert re.fullmatch(r"\d+\.\d+\.\d+ \((\d{4}-\d\d-\d\d|unreleased)\)", release), release


@pytest.mark.parametrize("form", ["bug", "different_text", "idea"])
def test_issue_forms_ask_something(form):
    asked = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{form}.yml").read_text())
    assert asked["name"]
    assert asked["description"]
    identifiers = [field["id"] for field in asked["body"]]
    assert len(identifiers) == len(set(identifiers)) > 0
    assert all(field["attributes"]["label"] for field in asked["body"])
