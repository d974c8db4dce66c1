"""What hierax reads can neither run code nor name places to write to: no pickle, no archives, hashes on downloads."""

import ast
from pathlib import Path

import numpy as np
import pytest
from test_checkpoints import checkpoints, rewrite, toy

import hierax as hx
from hierax.cli import user_file

SOURCE = Path(hx.__file__).parent
CODE = {path: ast.parse(path.read_text("utf-8")) for path in SOURCE.rglob("*.py")}
RUNS_WHAT_IT_READS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "tarfile"}
NAMES = {"eval", "exec", "unpack_archive", "extractall", "extract"}


def calls():
    for path, tree in CODE.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                yield path, name, node


def test_nothing_is_pickled_unpacked_or_evaluated():
    for path, tree in CODE.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not RUNS_WHAT_IT_READS & {module.partition(".")[0] for module in modules}, path
    for path, name, node in calls():
        assert name not in NAMES, f"{path}:{node.lineno}"
        if name in ("load", "save", "savez", "savez_compressed") and "np" in ast.unparse(node.func):
            stated = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert stated.get("allow_pickle") == "False", f"{path}:{node.lineno}"


def test_a_file_is_run_by_one_function_alone():
    runs = {path.relative_to(SOURCE).as_posix() for path, name, _ in calls() if name == "exec_module"}
    assert runs == {"cli/user_file.py"}
    with pytest.raises(hx.InputError, match=r"FILE\.py:NAME"):
        user_file.split("model.py:../../etc")  # NAME is the name of the output folder


def test_a_pickle_inside_a_checkpoint_is_not_read(tmp_path):
    """Also where the checksums are right: whoever can write the folder can make them."""

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "run",))

    folder = tmp_path / "there"
    toy(checkpoint=folder)
    for found in checkpoints(folder):
        rewrite(found, array=np.array([Evil()], dtype=object))
    with (
        pytest.warns(hx.HieraxWarning, match="allow_pickle=False"),
        pytest.raises(hx.InputError, match="every checkpoint in this folder is damaged"),
    ):
        toy(checkpoint=folder)
    assert not (tmp_path / "run").exists()
