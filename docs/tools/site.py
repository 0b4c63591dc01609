"""MkDocs' hook: the API reference, the explorer, the notebooks with their outputs, MathML.

The reference has a page for each module of the packages, the notebooks come from
``build/notebooks``, where ``make docs`` has executed them. Nothing on a page is loaded from
another host.
"""

import html
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

import mathml
import notebook_pages
import reference

ROOT = Path(__file__).parents[2]
NOTEBOOKS, REFERENCE = "notebooks/", "reference/"  # where the nav of mkdocs.yml wants them
EXPLORER = ROOT / "specjax" / "viz" / "explorer.html"
EXECUTED = ROOT / "build" / "notebooks"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the two entries of the navigation whose pages are generated."""
    for entry in config.nav:
        for name, value in entry.items():
            if value == NOTEBOOKS:
                entry[name] = notebook_pages.navigation(ROOT)
            elif value == REFERENCE:
                entry[name] = reference.navigation(ROOT)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the notebooks' figures."""
    pages = reference.pages(ROOT) | notebook_pages.pages(ROOT, EXECUTED)
    pages |= {"explorer.html": EXPLORER.read_text(encoding="utf-8")}
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write every formula as MathML, which browsers draw without a script."""
    found = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
    return found.sub(lambda m: mathml.draw(html.unescape(m[2]), block=m[1] == "div"), content)
