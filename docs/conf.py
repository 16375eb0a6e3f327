"""Sphinx's settings for the site; `make docs` builds it from the folder that docs/assemble.py makes."""

import os

project = "bertlab"
html_title = "bertlab"
copyright = "the authors of bertlab, Apache-2.0"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "index"

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # notebooks keep the outputs of a real run; the tests execute them
nb_mime_priority_overrides = [("html", "text/html", 0), ("html", "image/png", 10)]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_preserve_defaults = True
python_display_short_literal_types = True
napoleon_use_ivar = True
napoleon_custom_sections = [("Class attributes", "params_style")]
default_role = "code"  # of docstrings: `name` is code

html_theme = "furo"
html_show_sphinx = False
html_copy_source = False
html_static_path = [os.path.join(os.path.dirname(__file__), "static")]
html_css_files = ["site.css"]
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
