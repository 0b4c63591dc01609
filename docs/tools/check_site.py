"""Check the built site: every link, anchor and image of every page, and that formulas were drawn.

``python docs/tools/check_site.py site``, the end of ``make docs``. MkDocs checks the links of its
Markdown pages; this reads the HTML, slides and the explorer too. Links to other hosts are counted,
not followed.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

CODE = ("code", "pre", "script", "style", "textarea")
UNDRAWN = ("\\(", "\\[", "$$")  # how a formula begins that no tool has drawn


class Page(HTMLParser):
    """What a page has and what it refers to."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = {"", "top", "__comments"}
        self.links: list[str] = []
        self.pictures: list[tuple[str, str | None]] = []  # address, text for who cannot see it
        self.undrawn: list[str] = []
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element's name, links and pictures."""
        found = dict(attrs)
        self.anchors |= {name for key in ("id", "name") if (name := found.get(key))}
        if tag == "img":
            self.pictures.append((found.get("src") or "", found.get("alt")))
        elif address := found.get("href") or found.get("src"):
            self.links.append(address)
        if tag in CODE:
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Leave code."""
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        """Note formulas in the page's text that are still TeX."""
        if not self.inside and any(sign in data for sign in UNDRAWN):
            self.undrawn.append(" ".join(data.split())[:80])


def target(page: Path, address: str, site: Path) -> tuple[Path, str] | None:
    """Return the file and anchor of an address, None if it is of another host."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return None
    path = unquote(parts.path)
    file = page if not path else site / path[1:] if path[0] == "/" else page.parent / path
    file = file.resolve()
    return (file / "index.html" if file.is_dir() else file), unquote(parts.fragment)


def check(site: Path) -> tuple[list[str], dict[str, int]]:
    """Return what is wrong, and how much was looked at."""
    site = site.resolve()
    pages = {file: Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")}
    wrong: list[str] = []
    counts = dict.fromkeys(("pages", "links", "anchors", "pictures", "to other hosts"), 0)
    for file, page in pages.items():
        here = file.relative_to(site)
        counts["pages"] += 1
        wrong += [f"{here}: a formula was not drawn: {one}" for one in page.undrawn]
        for address, said in page.pictures:
            counts["pictures"] += 1
            found = None if address.startswith("data:image/") else target(file, address, site)
            if found and not (found[0].is_file() and found[0].stat().st_size):
                wrong.append(f"{here}: no picture {address}")
            if said is None:
                wrong.append(f"{here}: picture {address[:60]} has no text")
        for address in page.links:
            found = target(file, address, site)
            if found is None:
                counts["to other hosts"] += address.startswith("http")
                continue
            counts["links"] += 1
            linked, anchor = found
            if not linked.is_file():
                wrong.append(f"{here}: no page {address}")
            elif anchor and linked in pages and not standalone(linked):
                counts["anchors"] += 1
                if anchor not in pages[linked].anchors:
                    wrong.append(f"{here}: no anchor {address}")
    return wrong, counts


def standalone(page: Path) -> bool:
    """Return whether a page reads what follows # itself: the explorer, slides."""
    return page.name == "explorer.html" or page.parent.name == "slides"


if __name__ == "__main__":
    problems, looked_at = check(Path(sys.argv[1]))
    print(*sorted(problems), sep="\n")
    print(", ".join(f"{number:,} {what}" for what, number in looked_at.items()))
    sys.exit(bool(problems))
