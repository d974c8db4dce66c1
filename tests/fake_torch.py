"""A stand-in for PyTorch: tensors with a tape, and `autograd.grad` that can be differentiated again.

It has what `from_torch` and the tests' objectives use, with torch's meaning: gradients of parts that are not used are
None, results of `detach` are not followed, and without `create_graph` gradients are not followed either.
"""

import contextlib
import types

import numpy as np


class Tensor:
    """An array, and how cotangents of it become those of what it was made of."""

    def __init__(self, data, parents=(), requires_grad=False):
        self.data = np.asarray(data)
        self.parents = [(parent, rule) for parent, rule in parents if parent.requires_grad]
        self.requires_grad = requires_grad or bool(self.parents)

    @property
    def shape(self):
        return self.data.shape

    def requires_grad_(self, wanted):
        self.requires_grad = wanted
        return self

    def detach(self):
        return Tensor(self.data)

    def cpu(self):
        return self

    def numpy(self):
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.data

    def numel(self):
        return self.data.size

    def sum(self):
        return Tensor(self.data.sum(), [(self, lambda ct: spread(ct, self.shape))])

    def __add__(self, other):
        other = as_tensor(other)
        pulls = [(one, lambda ct, one=one: gathered(ct, one.shape)) for one in (self, other)]
        return Tensor(self.data + other.data, pulls)

    def __mul__(self, other):
        other = as_tensor(other)
        pulls = [
            (self, lambda ct: gathered(ct * other, self.shape)),
            (other, lambda ct: gathered(ct * self, other.shape)),
        ]
        return Tensor(self.data * other.data, pulls)

    def __pow__(self, power):
        return Tensor(self.data**power, [(self, lambda ct: ct * (power * self ** (power - 1)))])

    def __neg__(self):
        return self * -1.0

    def __sub__(self, other):
        return self + -as_tensor(other)

    def __rsub__(self, other):
        return as_tensor(other) - self

    __radd__, __rmul__ = __add__, __mul__


def as_tensor(value):
    return value if isinstance(value, Tensor) else Tensor(np.asarray(value))


def spread(one, shape):
    return Tensor(np.broadcast_to(one.data, shape), [(one, lambda ct: gathered(ct, one.shape))])


def gathered(one, shape):
    """The sum over the axes along which `spread` repeats."""
    if one.shape == shape:
        return one
    extra = tuple(range(one.data.ndim - len(shape)))
    kept = tuple(i + len(extra) for i, n in enumerate(shape) if n == 1 and one.shape[i + len(extra)] != 1)
    total = one.data.sum(axis=extra + kept, keepdims=True).reshape(shape)
    return Tensor(total, [(one, lambda ct: spread(ct, one.shape))])


def grad(output, inputs, allow_unused=False, create_graph=False):
    if not output.requires_grad:
        raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
    order, seen = [], set()

    def visit(tensor):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            for parent, _ in tensor.parents:
                visit(parent)
            order.append(tensor)

    visit(output)
    cotangents = {id(output): Tensor(np.ones_like(output.data))}
    for tensor in reversed(order):
        for parent, rule in tensor.parents:
            part = rule(cotangents[id(tensor)])
            cotangents[id(parent)] = cotangents[id(parent)] + part if id(parent) in cotangents else part
    found = [cotangents.get(id(one)) for one in inputs]
    if not allow_unused and None in found:
        raise RuntimeError("One of the differentiated Tensors appears to not have been used in the graph.")
    return tuple(one if one is None or create_graph else one.detach() for one in found)


def module():
    """The module."""
    fake = types.ModuleType("torch")
    fake.Tensor = Tensor
    fake.tensor = lambda array: Tensor(np.array(array))
    fake.is_tensor = lambda value: isinstance(value, Tensor)
    fake.enable_grad = contextlib.nullcontext
    fake.autograd = types.SimpleNamespace(grad=grad)
    return fake
