"""The site of `nox -s docs`: Sphinx reads the pages, which are Markdown that reads well by itself."""

from __future__ import annotations

project = "pgreferee"
author = "the authors of pgreferee"
root_doc = "index"
extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
# A heading's address is as on the forges where the pages are read, too.
myst_heading_anchors = 4

# Statements have parameters as $1, which the highlighter takes with a shrug.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = "pgreferee"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "native"
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
