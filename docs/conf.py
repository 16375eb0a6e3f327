"""Settings of the site that `make docs` builds, with Sphinx, from this repository's Markdown.

Its pages are those that one reads in the repository. Links to other files become downloads, and
links to folders plain text.
"""

import re
from pathlib import Path

project = html_title = "bertlab"
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "docs/index"
include_patterns = ["docs/*.md", "experiments/**.md", "bertlab/contrib/**.md"]
suppress_warnings = ["toc.not_included"]  # a page of results is reached by its link
myst_heading_anchors = 3
html_theme = "furo"


def prepare_page(app, page, source):
    """Removes links to folders; the index's links, in their order, become the navigation."""
    here = Path(app.srcdir, page).parent

    def without_folder(link):
        return link[1] if (here / link[2]).is_dir() else link[0]

    source[0] = re.sub(r"\[([^\]]+)\]\(([^):#]+)\)", without_folder, source[0])
    if page == root_doc:
        pages = "\n".join(re.findall(r"\]\((\S+\.md)\)", source[0]))
        source[0] += f"\n```{{toctree}}\n:hidden:\n{pages}\n/experiments/results/README.md\n```\n"


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", prepare_page)
