"""What an index shows of gemmgen: README, of which a link into the repository leads nowhere there and is a path instead.

All the rest is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup

PICTURE = re.compile(r"^!\[[^\]]*\]\((?!\w+:)[^)]*\)\n\n", re.M)
LINK = re.compile(r"\[(?P<text>(?:\\.|[^\]\\])*)\]\((?!\w+:)(?P<file>[^)#]*)(?:#[^)]*)?\)")


def named(link):
    """The words of a link, and the file that it leads to unless they are its name."""
    text, file = link["text"].replace("\\", ""), link["file"]
    return f"`{file}`" if text == file else f"{link['text']} (`{file}`)"


def description(readme):
    return LINK.sub(named, PICTURE.sub("", readme))


setup(
    long_description=description(Path(__file__).with_name("README.md").read_text()),
    long_description_content_type="text/markdown",
)
