"""Finding, checking and, only when asked, downloading the files of data sets.

A file is looked for in the folder that the user names, then among earlier downloads, and is read only if its hash is
that of the table. This module hands over bytes; what they mean is the business of `loading`.
"""

import hashlib
import importlib.util
import os
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from hierax import InputError, MissingExtra
from hierax_lab.datasets.sources import Source

VARIABLE = "HIERAX_DATA"
PIP_LINE = "pip install hierax-lab"  # which needs scikit-learn and pooch


class MissingData(InputError):
    """A data set's file is not there, or is another file; the text names the file, its home and the options.

    Examples:
        >>> import tempfile
        >>> from hierax_lab.datasets import MissingData, load
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     try:
        ...         load("diabetes", data_dir=folder)
        ...     except MissingData as error:
        ...         print("diabetes.csv" in str(error))
        True
    """


class Availability(NamedTuple):
    """Whether `load` works without a download, and from where or what is missing."""

    now: bool
    text: str


def content(source: Source, data_dir: str | os.PathLike[str] | None, download: bool) -> bytes:
    """The bytes of a bundled or outside file, checked against the table's hash."""
    if source.kind == "bundled":
        found, place = _bundled(source), f"the bundled {source.file}"
    else:
        path = _in(_named(data_dir), source)
        if path is None and source.kind == "file":
            path = _downloaded(source) if download else _in(_cache(), source)
        if path is None:
            raise MissingData(_not_found(source, data_dir))
        found, place = path.read_bytes(), str(path)
    sha256 = hashlib.sha256(found).hexdigest()
    if sha256 != source.sha256:
        raise MissingData(
            f"{source.name}: {place} is not the file of {source.home} that hierax knows: its sha256 is {sha256}, "
            f"needs {source.sha256} (docs/guides/datasets.md describes the file). Replace it."
        )
    return found


def availability(source: Source, data_dir: str | os.PathLike[str] | None = None) -> Availability:
    """Whether the data set can be loaded now; looks for files and packages, and reads nothing.

    Args:
        source: an entry of `SOURCES`.
        data_dir: a folder to look in; unset, the environment variable HIERAX_DATA.

    Examples:
        >>> from hierax_lab.datasets import SOURCES, availability
        >>> availability(SOURCES["pendigits"]).text
        'yes, bundled'
    """
    if source.kind == "bundled":
        return Availability(True, "yes, bundled")
    if source.kind == "scikit-learn":
        there = importlib.util.find_spec("sklearn") is not None
        return Availability(there, "yes, in scikit-learn" if there else f"no: {PIP_LINE}")
    path = _in(_named(data_dir), source)
    if path is None and source.kind == "file":
        path = _in(_cache(), source)
    if path is not None:
        return Availability(True, f"yes, {path}")
    name_it = f"name its folder with --data-dir or {VARIABLE}"
    if source.kind == "own file":
        return Availability(False, f"no: where you have {source.file}, {name_it}")
    return Availability(False, f"no: --download {source.name}, or {name_it}")


def _bundled(source: Source) -> bytes:
    return resources.files("hierax_lab.datasets").joinpath("data", source.file).read_bytes()


def _in(folder: Path | None, source: Source) -> Path | None:
    return folder / source.file if folder is not None and (folder / source.file).is_file() else None


def _named(data_dir: str | os.PathLike[str] | None) -> Path | None:
    """The user's folder: the argument, else the environment variable."""
    option, value = ("data_dir", data_dir) if data_dir is not None else (VARIABLE, os.environ.get(VARIABLE) or None)
    if value is None:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise InputError(f"{option}={folder}: there is no such folder.")
    return folder


def _cache() -> Path | None:
    """Where pooch keeps our downloads; None without pooch, as there are none then."""
    try:
        import pooch
    except ImportError:
        return None
    return Path(pooch.os_cache("hierax")) / "data"


def _not_found(source: Source, data_dir: str | os.PathLike[str] | None) -> str:
    folders = (_named(data_dir),) if source.kind == "own file" else (_named(data_dir), _cache())
    looked = " or ".join(str(folder) for folder in folders if folder is not None)
    absent = f"{source.name}: {source.file} is not {f'in {looked}' if looked else 'here'}"
    if source.kind == "own file":
        return (
            f"{absent}, and hierax neither ships nor downloads it (docs/guides/datasets.md says why). Where you have "
            f"the file, put it into a folder and name that with data_dir= (--data-dir) or the environment variable "
            f"{VARIABLE}."
        )
    return (
        f"{absent}. Its public home is "
        f"{source.home}: fetch it with load({source.name!r}, download=True) or "
        f"`hierax datasets --download {source.name}`, or put the file into a folder and name that with data_dir= "
        f"(--data-dir) or the environment variable {VARIABLE}."
    )


def _downloaded(source: Source) -> Path:
    try:
        import pooch
    except ImportError as error:
        raise MissingExtra(f"downloading {source.file} needs pooch: {PIP_LINE}") from error
    elsewhere = f"Or put the file into a folder and name that with data_dir= (--data-dir) or {VARIABLE}."
    try:
        path = pooch.retrieve(source.home, f"sha256:{source.sha256}", fname=source.file, path=_cache())
    except OSError as error:  # what requests raises is one too
        raise MissingData(
            f"{source.name}: {source.file} could not be downloaded from {source.home} "
            f"({type(error).__name__}: {error}). {elsewhere}"
        ) from error
    except ValueError as error:  # pooch's word for a wrong hash; the file is not kept
        raise MissingData(
            f"{source.name}: what {source.home} sent is not the {source.file} that hierax knows "
            f"(sha256 {source.sha256}), and was thrown away. {elsewhere}"
        ) from error
    return Path(path)
