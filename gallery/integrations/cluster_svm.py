"""
Several processes
=================

Sample weights of an SVM, chosen by several processes that each read a part of the data (docs/guides/cluster.md).

Alone it is an ordinary run on all devices of this machine::

    python gallery/integrations/cluster_svm.py

Two processes with half of the training and half of the validation rows each, in two terminals::

    python gallery/integrations/cluster_svm.py --coordinator 127.0.0.1:9911 --num-processes 2 --process-id 0
    python gallery/integrations/cluster_svm.py --coordinator 127.0.0.1:9911 --num-processes 2 --process-id 1

With --checkpoint DIR the same commands, given again after a process was killed, go on where the run was.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import minmax_scale

import hierax as hx

TRAIN, VALIDATION = 300, 100


def part_of(rows: np.ndarray) -> np.ndarray:
    """This process's part. A real script would read nothing else; this data set is too small to be cut up."""
    return np.array_split(rows, jax.process_count())[jax.process_index()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", help="address of process 0, host:port")
    parser.add_argument("--num-processes", type=int)
    parser.add_argument("--process-id", type=int)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint", help="a folder that process 0 can write to")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between checkpoints")
    parser.add_argument("--out", help="where process 0 writes x, w and b (npz)")
    options = parser.parse_args()

    jax.config.update("jax_enable_x64", True)
    if options.coordinator:  # before anything else touches a device
        jax.distributed.initialize(options.coordinator, options.num_processes, options.process_id)

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))

    features, labels = load_breast_cancer(return_X_y=True)
    features = minmax_scale(features, (-1.0, 1.0))
    labels = np.where(labels == 1, 1.0, -1.0)
    rows = np.random.default_rng(0).permutation(len(labels))
    train, validation = rows[:TRAIN], rows[TRAIN : TRAIN + VALIDATION]

    # The training rows are in the constraints. An array over all processes, of which each has its part:
    over_all = NamedSharding(mesh, PartitionSpec("data"))
    z = jax.make_array_from_process_local_data(over_all, part_of(features[train]))
    l = jax.make_array_from_process_local_data(over_all, part_of(labels[train]))
    root = TRAIN**0.5

    problem = hx.Problem(
        upper=lambda x, y, rows: jnp.mean(jnp.exp(1.0 - rows[1] * (rows[0] @ y["w"] + y["b"]))),
        lower=lambda x, y, _: 0.5 * jnp.sum(y["w"] ** 2) + 0.5 * TRAIN * jnp.sum(jax.nn.softmax(x) * y["slack"] ** 2),
        constraints=lambda x, y: 1.0 - l * (z @ y["w"] + y["b"]) - root * y["slack"],
        x_set=hx.Box(-5.0, 5.0),
        zeta=hx.Finite((part_of(features[validation]), part_of(labels[validation])), local=True),
    )
    x0 = np.zeros(TRAIN)
    y0 = {"w": np.zeros(features.shape[1]), "b": np.zeros(()), "slack": np.full(TRAIN, 1.0 / root)}

    sol = hx.solve(
        problem,
        x0,
        y0,
        hx.SALVF(batch_zeta=20, inner=hx.SALM(steps=5)),
        max_steps=options.steps,
        mesh=mesh,
        checkpoint=options.checkpoint,
        checkpoint_every=options.every,
    )

    if jax.process_index() == 0:  # one process speaks for all
        print(*sol.log, f"{sol.status.name} after step {sol.status.step}", sep="\n")
        print(f"F on the last batches: {sol.history['upper'][0]:.4f} -> {sol.history['upper'][-1]:.4f}")
        if options.out:
            np.savez(options.out, x=sol.x, w=sol.y["w"], b=sol.y["b"])


if __name__ == "__main__":
    main()
