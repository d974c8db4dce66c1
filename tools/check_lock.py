"""Resolve the locks for every supported platform, without installing anything: `make check-lock`.

    python tools/check_lock.py path/to/uv

uv resolves for other platforms than this one, from wheels only. pip, in the oldest version that is supported, resolves
for this machine. Both insist on the hashes. Needs a package registry; takes about a minute.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCKS = ("requirements.lock", "requirements-docs.lock", "lab/requirements-ipopt.lock")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# macOS on Intel processors is not among them: jaxlib has had no wheels for it since version 0.5.
PLATFORMS = (
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
)
OLDEST_PIP = "23.2.1"


def unresolved(title: str, command: list[str]) -> int:
    """Run a dry installation of each lock; print a line, and what was said where it fails. How many fail."""
    failures = 0
    for lock in LOCKS:
        asked = [*command, "--dry-run", "--require-hashes", "-r", str(ROOT / lock)]
        done = subprocess.run(asked, capture_output=True, text=True)
        print(f"{'resolves' if done.returncode == 0 else 'FAILS   '}  {lock}, {title}")
        if done.returncode != 0:
            print(done.stderr)
            failures += 1
    return failures


def main(uv: str) -> int:
    """The number of combinations that do not resolve."""
    failures = 0
    for platform in PLATFORMS:
        for version in PYTHONS:
            target = ["--python-platform", platform, "--python-version", version, "--only-binary", ":all:"]
            command = [uv, "pip", "install", "--python", sys.executable, "--target", "unused", *target]
            failures += unresolved(f"uv, {platform}, Python {version}", command)
    with tempfile.TemporaryDirectory() as folder:
        python = str(Path(folder) / "bin" / "python")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-qq", f"pip=={OLDEST_PIP}"], check=True)
        version = ".".join(map(str, sys.version_info[:2]))
        command = [python, "-m", "pip", "install", "-qq"]
        failures += unresolved(f"pip {OLDEST_PIP}, this machine, Python {version}", command)
    return failures


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    raise SystemExit(1 if main(sys.argv[1]) else 0)
