"""Build the two packages and use them as a stranger would: `make release-check`.

    python tools/check_release.py [dist]

Builds sdist and wheel of hierax and of hierax-lab into a folder (hatchling, without a download), builds a wheel from
each sdist too and compares the two, installs the wheel of hierax by pip into an environment of its own without extras,
and has `release_user.py` use it there; then adds the wheel of hierax-lab, for `release_lab_user.py`. Installing needs a
package registry, or pip's own settings that name a folder of wheels.
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
LAB = ROOT / "lab"
USER, LAB_USER = Path(__file__).with_name("release_user.py"), Path(__file__).with_name("release_lab_user.py")
IN_SDISTS = {  # beside the package
    "hierax": ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "conftest.py", "lab/pyproject.toml"),
    "hierax_lab": ("LICENSE", "README.md", "results/bolib.txt"),
}
LARGEST = 60_000  # bytes of a file in the wheel of hierax: results, data sets and collections belong to the lab


def main(dist: Path) -> None:
    """All of it; ends with an error where something is wrong."""
    dist.mkdir(parents=True, exist_ok=True)
    for old in dist.glob("hierax*"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="hierax-release-") as folder:
        wheel = built("hierax", ROOT, dist, Path(folder))
        lab_wheel = built("hierax_lab", LAB, dist, Path(folder))
        too_large = [entry.filename for entry in zipfile.ZipFile(wheel).infolist() if entry.file_size > LARGEST]
        if too_large:
            raise SystemExit(f"{wheel}: {', '.join(too_large)} is larger than {LARGEST} bytes")
        elsewhere = Path(folder) / "elsewhere"
        elsewhere.mkdir()
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HIERAX_DATA")}
        python = clean_environment(Path(folder) / "venv")
        for added, user in ((wheel, USER), (lab_wheel, LAB_USER)):
            install(python, added, dist)
            run([str(python), "-I", str(user)], cwd=elsewhere, env=kept | {"XDG_CACHE_HOME": folder})
    print(f"release-check: what is in {dist} is fine")


def built(package: str, project: Path, dist: Path, folder: Path) -> Path:
    """Build a package; its wheel, whose contents are what they should be."""
    run([sys.executable, "-m", "hatchling", "build", "-d", str(dist.resolve())], cwd=project)
    (sdist,), (wheel,) = dist.glob(f"{package}-*.tar.gz"), dist.glob(f"{package}-*.whl")
    check_contents(package, project, sdist, wheel, folder / package)
    return wheel


def check_contents(package: str, project: Path, sdist: Path, wheel: Path, folder: Path) -> None:
    """The wheel holds what git knows of the package and nothing else; the sdist is enough to build the same wheel."""
    listed = subprocess.run(["git", "ls-files", "src"], cwd=project, capture_output=True, text=True, check=True)
    known = {name.removeprefix("src/") for name in listed.stdout.split()}
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    if known != found:
        raise SystemExit(f"{wheel}: git and the wheel differ in {sorted(known ^ found)[:5]}")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    for name in IN_SDISTS[package]:
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


def clean_environment(folder: Path) -> Path:
    """The Python of a new, empty environment."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def install(python: Path, wheel: Path, dist: Path) -> None:
    """Install a wheel and what it needs; of our own packages, those just built."""
    call = [str(python), "-m", "pip", "--disable-pip-version-check"]
    run([*call, "install", "-qq", "--find-links", str(dist.resolve()), str(wheel.resolve())], cwd=dist)
    run([*call, "check"], cwd=dist)


def run(command: list[str], cwd: Path, env: dict[str, str] | None = None) -> None:
    """Run a command; where it fails, end with its name."""
    print("$", " ".join(command), flush=True)
    if subprocess.run(command, cwd=cwd, env=env, check=False).returncode != 0:
        raise SystemExit(f"release-check: failed at {' '.join(command)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
