"""What mkdocs calls while it builds the site (mkdocs.yml, `hooks`)."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from mkdocs.structure.files import File

from docs.tools import messages, site
from gemmgen import __version__

MESSAGES = "messages.md"


def on_config(config: Any) -> Any:
    """Every page says at its foot what it is about."""
    config.copyright = f"gemmgen {__version__}, Apache-2.0"
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages of files outside docs/, and the one of messages."""
    own = [site.DOCS / f.src_uri for f in files.documentation_pages()]
    for file in site.linked(own):
        uri = str(site.page_of(file))
        files.append(File.generated(config, uri, content=site.page(file)))
    files.append(File.generated(config, MESSAGES, content=messages.page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    uri = PurePosixPath(page.file.src_uri)
    if uri.is_relative_to(site.OTHERS):
        file = uri.relative_to(site.OTHERS)
        if not (site.ROOT / file).exists():  # the page of a file that is not Markdown
            return markdown
        return site.prepared(markdown, file)
    return site.prepared(markdown, site.DOCS / uri)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    if page.file.src_uri.startswith("zh/"):
        return output.replace('<html lang="en"', '<html lang="zh-Hans"', 1)
    return output
