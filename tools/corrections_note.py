"""Write docs/methods/corrections-note.tex, the corrections of the paper as a LaTeX note, from the page corrections.md.

The page is the only source. It uses few forms: headings, paragraphs, numbered items with paragraphs and formulas below
them, one table, bold, italics, code, links, and mathematics between dollars, which is taken as it is.
"""

import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "methods"
PAGE, NOTE = FOLDER / "corrections.md", FOLDER / "corrections-note.tex"
HEAD = r"""% Made by tools/corrections_note.py from corrections.md; do not edit.
\documentclass[11pt]{article}
\usepackage[margin=1in]{geometry}
\usepackage[T1]{fontenc}
\usepackage{amsmath,amssymb,enumitem,longtable}
\setlength{\parskip}{4pt}
\setlength{\emergencystretch}{3em}
"""
SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
SPECIAL |= {char: f"\\{char}" for char in "&%#_{}$"}
WIDTHS = (0.36, 0.26, 0.3)  # of the table's columns


def escaped(text: str) -> str:
    """Text in which no character means anything to LaTeX."""
    return "".join(SPECIAL.get(char, char) for char in text)


def inline(text: str) -> str:
    """Text of a paragraph or a cell, in LaTeX."""
    kept: list[str] = []

    def keep(latex: str) -> str:
        kept.append(latex)
        return f"\0{len(kept) - 1}\0"

    text = re.sub(r"\$[^$]+\$", lambda m: keep(m[0]), text)
    text = re.sub(r"`([^`]+)`", lambda m: keep(rf"\texttt{{{escaped(m[1])}}}"), text)
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)  # the words of a link
    text = re.sub(r'"([^"]*)"', r"``\1''", escaped(text))
    text = re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text, flags=re.DOTALL)
    text = re.sub(r"\*(.+?)\*", r"\\emph{\1}", text, flags=re.DOTALL)
    while "\0" in text:  # bold and italics may hold what was kept
        text = re.sub(r"\0(\d+)\0", lambda m: kept[int(m[1])], text)
    return text


def table(lines: list[str]) -> str:
    """The rows of a table."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    columns = "".join(rf"p{{{width}\textwidth}}" for width in WIDTHS)
    head, *body = [" & ".join(map(inline, row)) + r" \\" for row in (rows[0], *rows[2:])]
    lines = [rf"\begin{{longtable}}{{{columns}}}", r"\hline", head, r"\hline", *body, r"\hline", r"\end{longtable}"]
    return "\n".join(lines)


def paragraph(block: str) -> str:
    """A block that is no item: a formula, a heading, a table, or text."""
    if block.startswith("$$"):
        return block.replace("$$", r"\[", 1)[:-2] + r"\]"
    if heading := re.fullmatch(r"## (.+)", block):
        return rf"\section*{{{inline(heading[1])}}}"
    return table(block.splitlines()) if block.startswith("|") else inline(block)


def note(page: str) -> str:
    """The page as a LaTeX document."""
    title, _, text = page.partition("\n\n")
    parts, in_items = [], False
    for block in re.split(r"\n\n+", re.sub(r"\n(?=\d+\. )", "\n\n", text).strip()):
        number = re.match(r"(\d+)\. ", block)
        belongs = number or block.startswith("    ")
        plain = re.sub(r"^ {4}", "", block, flags=re.MULTILINE)
        if in_items and not belongs:
            parts.append(r"\end{enumerate}")
        if number and not in_items:
            parts.append(rf"\begin{{enumerate}}[start={number[1]}]")
        in_items = bool(belongs)
        if number:
            parts.append(rf"\item\label{{item:{number[1]}}} {paragraph(plain[number.end() :])}")
        else:
            parts.append(paragraph(plain))
    body = re.sub(r"\b(items?) (\d+)\b", r"\1~\\ref{item:\2}", "\n\n".join(parts))
    front = rf"\title{{{inline(title.removeprefix('# '))}}}" + "\n\\date{}\n\\begin{document}\n\\maketitle\n\n"
    return f"{HEAD}{front}{body}\n\n\\end{{document}}\n"


if __name__ == "__main__":
    made = note(PAGE.read_text("utf-8"))
    if "--check" in sys.argv:
        sys.exit(0 if NOTE.read_text("utf-8") == made else f"{NOTE.name} is not what {PAGE.name} gives: run this tool.")
    NOTE.write_text(made, "utf-8")
