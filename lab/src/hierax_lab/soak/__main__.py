"""`make soak`, or `python -m hierax_lab.soak [part ...]`: runs the parts and says which of them held."""

import argparse
import sys

from hierax_lab.soak import kills, load, shapes, steps, threads

PARTS = {"kills": kills, "steps": steps, "shapes": shapes, "threads": threads, "load": load}


def main() -> int:
    """Run the parts; the exit code is the number of those that did not hold."""
    parser = argparse.ArgumentParser(prog="python -m hierax_lab.soak", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; none: all of them")
    parser.add_argument("--seed", type=int, default=0, help="of everything random")
    for part in PARTS.values():
        part.add_options(parser)
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    held = {name: PARTS[name].run(options) for name in options.parts or PARTS}
    for name, fine in held.items():
        print(f"{name}: {'held' if fine else 'DID NOT HOLD'}")
    return sum(not fine for fine in held.values())


if __name__ == "__main__":
    sys.exit(main())
