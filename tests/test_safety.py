"""What hierax reads can neither run code nor name places to write to: no pickle, no archives, hashes on downloads."""

import ast
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import hierax as hx
from hierax._run import checkpoint_folder
from hierax._run.checkpoint_folder import Checkpoint, CheckpointFolder, Damaged, read_checkpoint
from hierax._run.packing import packed
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


def written(folder, records):
    place = CheckpointFolder(folder)
    place.write(Checkpoint({}, checkpoint_folder.versions(), "", records))
    place.close()
    return folder / "checkpoint-00000001"


def test_names_in_a_checkpoint_are_no_paths(tmp_path):
    found = written(tmp_path / "there", {"../../evil": packed(np.ones(2)), "/tmp/evil": packed("text")})
    assert sorted(path.name for path in found.iterdir()) == ["arrays.npz", "checkpoint.json"]
    assert sorted(path.name for path in tmp_path.rglob("*evil*")) == []
    assert set(read_checkpoint(found).records) == {"../../evil", "/tmp/evil"}


def test_a_pickle_inside_a_checkpoint_is_not_read(tmp_path):
    """Also where the hashes are right: whoever can write the folder can make them."""

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "run",))

    found = written(tmp_path / "there", {"a": packed(np.ones(2))})
    np.savez(found / "arrays.npz", **{"0.0": np.array([Evil()], dtype=object)})
    content = json.loads((found / "checkpoint.json").read_text())
    del content["sha256"]
    content["sha256_of_arrays"] = hashlib.sha256((found / "arrays.npz").read_bytes()).hexdigest()
    content["sha256"] = checkpoint_folder._hash_of(content)
    (found / "checkpoint.json").write_text(json.dumps(content))
    with pytest.raises(Damaged, match="allow_pickle=False"):
        read_checkpoint(found)
    assert not (tmp_path / "run").exists()
