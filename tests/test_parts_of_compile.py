"""Unit tests of hierax._compile.configuration."""

import sys
from pathlib import Path

import jax
import pytest

import hierax as hx
from hierax._compile import configuration
from hierax._compile.configuration import default_folder


def test_cache_folder_follows_the_platform(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "hierax"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert default_folder() == tmp_path / ".cache" / "hierax"


def test_a_folder_that_cannot_be_made_is_refused_and_the_import_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    updates: dict[str, object] = {}
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    with pytest.raises(hx.InputError, match="cannot be made"):
        hx.cache(tmp_path / "file" / "below")
    monkeypatch.setenv("HIERAX_CACHE", str(tmp_path / "file"))
    with pytest.warns(hx.HieraxWarning, match="HIERAX_CACHE"):
        configuration.cache_where_the_environment_says()
    assert updates == {}
