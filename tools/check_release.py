"""Build the package and use it as a stranger would: `make release-check`.

    python tools/check_release.py [dist]

Builds sdist and wheel into a folder (hatchling, without a download), builds a wheel from the sdist too and compares the
two, installs the wheel by pip into an environment of its own without extras, and has `release_user.py` use it there.
Installing needs a package registry, or pip's own settings that name a folder of wheels.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
USER = Path(__file__).with_name("release_user.py")


def main(dist: Path) -> None:
    """All of it; ends with an error where something is wrong."""
    dist.mkdir(parents=True, exist_ok=True)
    for old in dist.glob("hierax-*"):
        old.unlink()
    run([sys.executable, "-m", "hatchling", "build", "-d", str(dist.resolve())], cwd=ROOT)
    (sdist,), (wheel,) = dist.glob("hierax-*.tar.gz"), dist.glob("hierax-*.whl")
    with tempfile.TemporaryDirectory(prefix="hierax-release-") as folder:
        check_contents(sdist, wheel, Path(folder))
        python = clean_environment(Path(folder) / "venv", wheel)
        elsewhere = Path(folder) / "elsewhere"
        elsewhere.mkdir()
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HIERAX_DATA")}
        run([str(python), "-I", str(USER)], cwd=elsewhere, env=kept | {"XDG_CACHE_HOME": folder})
    print(f"release-check: {sdist} and {wheel} are fine")


def check_contents(sdist: Path, wheel: Path, folder: Path) -> None:
    """The wheel holds what git knows of the package and nothing else; the sdist is enough to build the same wheel."""
    listed = subprocess.run(["git", "ls-files", "src/hierax"], cwd=ROOT, capture_output=True, text=True, check=True)
    known = {name.removeprefix("src/") for name in listed.stdout.split()}
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    if known != found:
        raise SystemExit(f"{wheel}: git and the wheel differ in {sorted(known ^ found)[:5]}")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "tests/conftest.py"):
        if not (unpacked / name).is_file():
            raise SystemExit(f"{sdist}: lacks {name}")
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "again")], cwd=unpacked)
    (again,) = (folder / "again").glob("*.whl")
    if contents(wheel) != contents(again):
        raise SystemExit(f"{sdist}: the wheel made from it is not that made from the tree")


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def clean_environment(folder: Path, wheel: Path) -> Path:
    """The Python of a new environment with the wheel and what it needs, and nothing else."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    run([str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", str(wheel.resolve())], cwd=folder)
    run([str(python), "-m", "pip", "check", "--disable-pip-version-check"], cwd=folder)
    return python


def run(command: list[str], cwd: Path, env: dict[str, str] | None = None) -> None:
    """Run a command; where it fails, end with its name."""
    print("$", " ".join(command), flush=True)
    if subprocess.run(command, cwd=cwd, env=env, check=False).returncode != 0:
        raise SystemExit(f"release-check: failed at {' '.join(command)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
