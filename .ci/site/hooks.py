"""Hooks of mkdocs: the site has the repository's pages at the repository's paths, so that their links hold as they are.

Pages are README.md, docs/*.md and whatever they link to, in turn.  A linked file of code, or folder, becomes a page
that shows it, at its path with `.md` added.  The navigation is the order of the tables in docs/README.md.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
INDEX = "docs/README.md"
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")
IMAGES = (".png", ".svg", ".jpg")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation."""
    sections = re.split(r"^## (.+)$", text(INDEX), flags=re.MULTILINE)[1:]
    ordered = [
        {title: [{Path(name).stem: f"docs/{name}"} for name in links(table)]}
        for title, table in zip(sections[::2], sections[1::2], strict=True)
    ]
    config.nav = [{"specplug": "README.md"}, {"All pages": INDEX}, *ordered]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of `docs` by all that belong to the site."""
    for file in [one for one in files if one.src_dir == config.docs_dir]:
        files.remove(file)
    files.append(File.generated(config, "site.css", content=text(".ci/site/site.css")))
    waiting, seen = ["README.md", INDEX], set[str]()
    while waiting:
        path = waiting.pop()
        if path in seen or not (ROOT / path).exists():
            continue
        seen.add(path)
        if path.endswith((".md", *IMAGES)):
            files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))
            waiting += [resolved(path, link) for link in links(text(path))] if path.endswith(".md") else []
        else:
            files.append(File.generated(config, f"{path}.md", content=(content := shown(path))))
            waiting += [resolved(path, link) for link in links(content)] if (ROOT / path).is_dir() else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to code and folders lead to the pages that show them."""

    def rewritten(link: re.Match[str]) -> str:
        is_shown = f"{resolved(page.file.src_uri, link[2])}.md" in files.src_uris
        return f"{link[1]}{link[2].rstrip('/')}.md{link[3]}" if is_shown else link[0]

    return LINK.sub(rewritten, markdown)


def text(path: str) -> str:
    """Read a file of the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def links(markdown: str) -> list[str]:
    """Return the targets of a text's relative links."""
    return [link[2] for link in LINK.finditer(markdown)]


def resolved(path: str, link: str) -> str:
    """Return the path in the repository to which a link of a page leads."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def shown(path: str) -> str:
    """Return a page that shows a file, or lists a folder; of a notebook, its cells and their output."""
    if (ROOT / path).is_dir():
        inside = sorted(one.name for one in (ROOT / path).iterdir() if not one.name.startswith(("_", ".")))
        return f"# {path}\n\n" + "\n".join(f"- [{name}]({Path(path).name}/{name})" for name in inside)
    if not path.endswith(".ipynb"):
        language = Path(path).suffix.removeprefix(".") or "text"
        matter = "search: {exclude: true}\nhide: [navigation, toc]"
        return f"---\n{matter}\n---\n# {Path(path).name}\n\n``````{language}\n{text(path)}\n``````\n"
    parts = []
    for cell in json.loads(text(path))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"``````python\n{source}\n``````")
        parts += [f"``````text\n{''.join(output['text'])}``````" for output in cell.get("outputs", ())]
    return "\n\n".join(parts)
