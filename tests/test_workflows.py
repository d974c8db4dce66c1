"""Workflows and hooks: pinned, with few rights, and made of `make` targets that exist."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = set(re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)[1].replace("\\", " ").split())


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_is_pinned_and_may_do_little(file):
    text = file.read_text("utf-8")
    for action in re.findall(r"uses: (.*)", text):
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    assert "\npermissions: {}\n" in text and "\nconcurrency:\n" in text and "secrets." not in text
    assert text.count("timeout-minutes:") == text.count("runs-on:") == text.count("    permissions:\n")
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")
    rights = set(re.findall(r"^ {6}([\w-]+: (?:read|write))\b", text, re.MULTILINE))
    assert rights <= {"contents: read"} | ({"id-token: write"} if file.stem == "release" else set())


def test_workflows_run_make_targets():
    asked = re.findall(r"run: make ([\w-]+)", "".join(file.read_text("utf-8") for file in WORKFLOWS))
    assert {"lint", "coverage", "docs", "release-check"} <= set(asked) <= TARGETS
    assert {"test-oldest", "test-newest"} <= TARGETS


def test_the_help_names_every_target():
    helped = re.findall(r'@echo "make ([\w-]+) ', MAKEFILE)
    assert TARGETS - set(helped) == {"help", "test-newest"}  # the latter stands in the line of test-oldest


def test_the_same_pythons_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    stated = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert project["requires-python"] == f">={stated[0]}"
    matrix = re.search(r"python: \[(.*)\]", (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8"))[1]
    locks = re.search(r"PYTHONS = \((.*)\)", (ROOT / "tools" / "check_lock.py").read_text("utf-8"))[1]
    assert re.findall(r"3\.\d+", matrix) == re.findall(r"3\.\d+", locks) == stated
    assert f"Python {stated[0]} to {stated[-1]}, typed" in (ROOT / "README.md").read_text("utf-8")


def test_hooks_are_local():
    text = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    assert re.findall(r"repo: (.*)", text) == ["local"] and "://" not in text
    assert set(re.findall(r"language: (.*)", text)) == {"system"}
    assert all(entry.startswith(".venv/bin/") for entry in re.findall(r"entry: (.*)", text))
