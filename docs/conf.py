"""Sphinx settings of the documentation site; `make docs` builds it, from files alone.

What is particular to hierax stands in `_ext/`: the reference (`catalogue.py`, `gate.py`, `reference_pages.py`), and
what is written besides pages (`site_files.py`).
"""

import sys
from pathlib import Path

import matplotlib as mpl

HERE = Path(__file__).parent
GALLERY = HERE.parent / "gallery"
sys.path.insert(0, str(HERE / "_ext"))
mpl.use("agg")

import hierax

project = "hierax"
author = "The hierax developers"
project_copyright = "the hierax developers, Apache-2.0"
release = version = hierax.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "site_files",
]
exclude_patterns = ["_ext", "pictures/figures", "sg_execution_times.rst", "gallery/**/sg_execution_times.rst"]

# The pages read the same on GitHub: dollars for mathematics, anchors from headings, lists of definitions.
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 4
myst_dmath_allow_space = False
myst_dmath_allow_digits = False
myst_links_external_new_tab = False

maximum_signature_line_length = 70
python_display_short_literal_types = True
add_module_names = False
toc_object_entries = False
pygments_style = "friendly"

html_theme = "pydata_sphinx_theme"
html_title = "hierax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "logo": {"text": "hierax"},
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "navbar_end": ["theme-switcher"],
    "show_prev_next": True,
    "show_toc_level": 2,
    "navigation_depth": 3,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "friendly",
    "pygments_dark_style": "github-dark",
}
html_sidebars = {"index": []}
# No menu: it would load parts of MathJax on demand. Text between dollars has become mathematics before MathJax sees it.
mathjax3_config = {
    "options": {"enableMenu": False},
    "chtml": {"scale": 0.95, "displayAlign": "left", "displayIndent": "1.5em"},
}

if any(GALLERY.glob("*/plot_*.py")):
    extensions.insert(0, "sphinx_gallery.gen_gallery")
    sphinx_gallery_conf = {
        "examples_dirs": str(GALLERY),
        "gallery_dirs": "gallery",
        "subsection_order": ["../gallery/first_steps", "*"],
        "filename_pattern": r"[/\\]plot_",
        "ignore_pattern": r"__init__\.py",
        "parallel": 2,
        "abort_on_example_error": False,
        "only_warn_on_example_error": False,
        "download_all_examples": False,
        "show_memory": False,
        "show_signature": False,
        "min_reported_time": 60,
        "write_computation_times": False,
        "doc_module": ("hierax",),
        "backreferences_dir": None,
        "image_scrapers": ("matplotlib",),
        "reset_modules": ("matplotlib", "site_files.fresh_jax"),
        "reset_modules_order": "both",
        "nested_sections": True,
        "copyfile_regex": r".*\.(?:csv|npy)",
    }
