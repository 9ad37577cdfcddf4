# SPDX-License-Identifier: BSL-1.0
"""Sphinx: the pages as HTML. `docs/site/build` copies them first, and calls Sphinx."""
project = "asio_rdma"
copyright = "the authors of asio_rdma, Boost Software License 1.0"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
exclude_patterns = ["docs/site"]
html_theme = "furo"
html_title = "asio_rdma"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["site/static"]
html_css_files = ["site.css"]
pygments_style = "friendly"
pygments_dark_style = "native"
# Diagrams of text, and output of programs.
highlight_language = "text"
