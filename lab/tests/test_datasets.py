"""Data sets: values, labels and splits; where files are looked for; no download unless asked; what errors say."""

import collections
import hashlib
import http.server
import io
import os
import re
import socket
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pooch  # noqa: F401  # it logs to the stderr of its first import, which inside of a CliRunner is closed soon after
import pytest
from sockets import drop_sockets
from typer.testing import CliRunner

from hierax import HieraxWarning, InputError, MissingExtra
from hierax.cli import app
from hierax_lab import datasets
from hierax_lab.datasets import files, loading
from hierax_lab.datasets import sources as table

ROOT = Path(__file__).parents[2]
OUTSIDE = os.environ.get("HIERAX_DATA")
needs_outside = pytest.mark.skipif(not OUTSIDE, reason="needs outside data files: set HIERAX_DATA to their folder")
needs_diabetes = pytest.mark.skipif(
    not OUTSIDE or not (Path(OUTSIDE) / "diabetes.csv").is_file(),
    reason="diabetes.csv may not be shipped: set HIERAX_DATA to a folder with your copy",
)
DATA = Path(table.__file__).parent / "data"
MADE_UP = types.SimpleNamespace(features=np.random.default_rng(0).uniform(-1.0, 1.0, (768, 8)))
BUNDLED = [source for source in datasets.SOURCES.values() if source.kind == "bundled"]


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No data folder, no earlier downloads, no proxy between a test and its own server."""
    for name in ("HIERAX_DATA", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("hierax_lab.datasets.files._cache", lambda: tmp_path / "cache")


def offline(*args, **kwargs):
    raise AssertionError("a connection was opened")


def small_fourclass(monkeypatch, home="http://127.0.0.1:9/fourclass_scale"):
    """The table with a file of three lines instead of LIBSVM's; returns its bytes."""
    content = b"-1 1:0.5 2:-0.25 \n+1 2:0.75 \n-1 1:-1 \n"
    sha256 = hashlib.sha256(content).hexdigest()
    source = datasets.SOURCES["fourclass"]._replace(rows=3, sha256=sha256, home=home)
    monkeypatch.setitem(datasets.SOURCES, "fourclass", source)
    return content


# -- values -----------------------------------------------------------------------------------------------------------


@needs_diabetes
def test_diabetes_raw():
    data = datasets.load("diabetes", data_dir=OUTSIDE)
    assert data.features.shape == (768, 8)
    assert data.features.dtype == data.labels.dtype == np.float64
    assert collections.Counter(data.labels) == {1.0: 268, -1.0: 500}
    assert data.positive == "tested positive"
    assert data.train is None
    # the first line of the UCI file
    np.testing.assert_array_equal(data.features[0], [6, 148, 72, 35, 0, 33.6, 0.627, 50])
    assert data.labels[0] == 1.0
    assert data.source == datasets.SOURCES["diabetes"].origin
    assert data.licence == datasets.SOURCES["diabetes"].licence


@needs_diabetes
def test_diabetes_scaled_is_libsvms_form():
    raw, data = (datasets.load("diabetes", scaled=scaled, data_dir=OUTSIDE) for scaled in (False, True))
    np.testing.assert_array_equal(data.features.min(axis=0), -1.0)
    np.testing.assert_array_equal(data.features.max(axis=0), 1.0)
    np.testing.assert_array_equal(data.labels, -raw.labels)
    assert data.positive == "tested negative"
    # the first line of LIBSVM's diabetes_scale: six digits, made from single-precision values (33.599998)
    published = [-0.294118, 0.487437, 0.180328, -0.292929, -1, 0.00149028, -0.53117, -0.0333333]
    np.testing.assert_allclose(data.features[0], published, rtol=0, atol=1e-6)
    assert data.labels[0] == -1.0


def test_pendigits_has_the_split_of_uci():
    data = datasets.load("pendigits")
    assert data.features.shape == (10992, 16)
    assert data.features.dtype == np.float64
    assert data.labels.dtype == np.int64
    assert (data.features.min(), data.features.max()) == (0, 100)
    assert data.positive is None
    assert data.train == 7494
    # class counts of UCI's description, pendigits.names
    train, test = [780, 779, 780, 719, 780, 720, 720, 778, 719, 719], [363, 364, 364, 336, 364, 335, 336, 364, 336, 336]
    np.testing.assert_array_equal(np.bincount(data.labels[: data.train]), train)
    np.testing.assert_array_equal(np.bincount(data.labels[data.train :]), test)


@needs_outside
def test_pendigits_is_uci_row_for_row():
    data = datasets.load("pendigits")
    rows = np.column_stack([data.features, data.labels])
    for name, part in (("pendigits.tra", rows[: data.train]), ("pendigits.tes", rows[data.train :])):
        path = Path(OUTSIDE) / name
        if not path.is_file():
            pytest.skip(f"HIERAX_DATA has no {name}")
        theirs = np.loadtxt(path, delimiter=",")
        assert collections.Counter(map(tuple, theirs)) == collections.Counter(map(tuple, part))


def test_digits_and_breast_cancer_are_sklearns():
    reference = pytest.importorskip("sklearn.datasets")
    digits, (features, labels) = datasets.load("digits"), reference.load_digits(return_X_y=True)
    np.testing.assert_array_equal(digits.features, features)
    np.testing.assert_array_equal(digits.labels, labels)
    assert digits.labels.dtype == np.int64
    assert digits.positive is None
    cancer, bunch = datasets.load("breast-cancer"), reference.load_breast_cancer()
    np.testing.assert_array_equal(cancer.features, bunch.data)
    assert bunch.target_names[bunch.target[cancer.labels == 1.0]].tolist() == [cancer.positive] * 357
    assert collections.Counter(cancer.labels) == {1.0: 357, -1.0: 212}


def test_other_values_in_sklearn_are_told(monkeypatch):
    pytest.importorskip("sklearn")
    source = datasets.SOURCES["digits"]._replace(sha256="0" * 64)
    monkeypatch.setitem(datasets.SOURCES, "digits", source)
    with pytest.warns(HieraxWarning, match="digits: the values of the installed scikit-learn"):
        datasets.load("digits")


@needs_outside
def test_fourclass_of_libsvm(monkeypatch):
    if not (Path(OUTSIDE) / "fourclass_scale").is_file():
        pytest.skip("HIERAX_DATA has no fourclass_scale")
    monkeypatch.setenv("HIERAX_DATA", OUTSIDE)
    data = datasets.load("fourclass")
    assert data.features.shape == (862, 2)
    assert collections.Counter(data.labels) == {1.0: 307, -1.0: 555}
    assert np.abs(data.features).max() == 1.0
    assert (data.features == 0).sum() == 7  # the zeros that the file leaves out
    reference = pytest.importorskip("sklearn.datasets")
    features, labels = reference.load_svmlight_file(str(Path(OUTSIDE) / "fourclass_scale"), n_features=2)
    np.testing.assert_array_equal(data.features, features.toarray())
    np.testing.assert_array_equal(data.labels, labels)


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", BUNDLED, ids=lambda source: source.name)
def test_bundled_files_have_the_hash_of_the_table(source):
    path = DATA / source.file
    assert hashlib.sha256(path.read_bytes()).hexdigest() == source.sha256


def test_only_bundled_files_are_shipped():
    shipped = {path.name for path in DATA.iterdir()}
    assert shipped - {".gitattributes", "README.md"} == {source.file for source in BUNDLED}


@pytest.mark.parametrize("source", BUNDLED, ids=lambda source: source.name)
def test_the_terms_of_bundled_files_stand_beside_them(source):
    text = (DATA / "README.md").read_text()
    for part in (source.file, source.home, source.licence.partition(" (")[0]):
        assert part in text


def test_a_damaged_file_is_not_read(monkeypatch):
    monkeypatch.setattr("hierax_lab.datasets.files._bundled", lambda source: b"preg\n")
    with pytest.raises(datasets.MissingData, match=r"the bundled pendigits\.npz is not the file .* its sha256 is .*"):
        datasets.load("pendigits")


def small_diabetes(monkeypatch):
    """The table with a file of two rows; returns its bytes."""
    content = (
        b"preg,plas,pres,skin,insu,mass,pedi,age,tested_positive\n1,2,3,4,5,6.5,0.5,20,1\n3,2,1,0,5,7.5,0.25,30,0\n"
    )
    sha256 = hashlib.sha256(content).hexdigest()
    monkeypatch.setitem(datasets.SOURCES, "diabetes", datasets.SOURCES["diabetes"]._replace(rows=2, sha256=sha256))
    return content


def test_diabetes_from_a_folder_of_the_user(tmp_path, monkeypatch):
    (tmp_path / "diabetes.csv").write_bytes(small_diabetes(monkeypatch))
    raw, scaled = (datasets.load("diabetes", scaled=scaled, data_dir=tmp_path) for scaled in (False, True))
    np.testing.assert_array_equal(raw.features, [[1, 2, 3, 4, 5, 6.5, 0.5, 20], [3, 2, 1, 0, 5, 7.5, 0.25, 30]])
    np.testing.assert_array_equal(raw.labels, [1.0, -1.0])
    assert (raw.positive, scaled.positive) == ("tested positive", "tested negative")
    np.testing.assert_array_equal(scaled.features[0], [-1, 0, 1, 1, 0, -1, 1, -1])
    np.testing.assert_array_equal(scaled.labels, [-1.0, 1.0])
    (tmp_path / "diabetes.csv").write_bytes(b"another file")
    with pytest.raises(datasets.MissingData, match=r"diabetes\.csv is not the file of .*docs/guides/datasets\.md"):
        datasets.load("diabetes", data_dir=tmp_path)


def test_diabetes_is_neither_shipped_nor_downloaded(tmp_path, monkeypatch):
    content = small_diabetes(monkeypatch)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "diabetes.csv").write_bytes(content)  # not looked at: nothing of it is ever downloaded
    monkeypatch.setattr(socket, "create_connection", offline)
    monkeypatch.setattr(socket.socket, "connect", offline)
    for download in (False, True):
        with pytest.raises(datasets.MissingData, match=r"neither ships nor downloads it .*data_dir=.*HIERAX_DATA"):
            datasets.load("diabetes", download=download)
    available = datasets.availability(datasets.SOURCES["diabetes"])
    assert not available.now and available.text.startswith("no: where you have diabetes.csv")
    monkeypatch.setenv("HIERAX_DATA", str(tmp_path / "cache"))
    assert datasets.availability(datasets.SOURCES["diabetes"]).now
    assert len(datasets.load("diabetes").labels) == 2


def test_fourclass_by_index_from_a_folder(tmp_path, monkeypatch):
    content = small_fourclass(monkeypatch)
    (tmp_path / "fourclass_scale").write_bytes(content)
    data = datasets.load("fourclass", data_dir=tmp_path)
    np.testing.assert_array_equal(data.features, [[0.5, -0.25], [0, 0.75], [-1, 0]])
    np.testing.assert_array_equal(data.labels, [-1.0, 1.0, -1.0])
    monkeypatch.setenv("HIERAX_DATA", str(tmp_path))
    np.testing.assert_array_equal(datasets.load("fourclass", scaled=True).features, data.features)


def test_the_argument_wins_over_the_variable(tmp_path, monkeypatch):
    content = small_fourclass(monkeypatch)
    (tmp_path / "fourclass_scale").write_bytes(content)
    monkeypatch.setenv("HIERAX_DATA", str(tmp_path / "absent"))
    assert len(datasets.load("fourclass", data_dir=tmp_path).labels) == 3
    with pytest.raises(InputError, match=r"HIERAX_DATA=.*absent: there is no such folder"):
        datasets.load("fourclass")
    with pytest.raises(InputError, match=r"data_dir=.*nowhere: there is no such folder"):
        datasets.load("fourclass", data_dir=tmp_path / "nowhere")


def test_another_file_of_that_name_is_not_read(tmp_path):
    (tmp_path / "fourclass_scale").write_text("-1 1:0.5\n")
    with pytest.raises(
        datasets.MissingData, match=r"fourclass_scale is not the file of https://www\.csie\.ntu.*needs b0d75d26"
    ):
        datasets.load("fourclass", data_dir=tmp_path)


def test_absent_names_file_home_and_options_and_downloads_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "create_connection", offline)
    monkeypatch.setattr(socket.socket, "connect", offline)
    with pytest.raises(InputError) as caught:
        datasets.load("fourclass", data_dir=tmp_path)
    text = str(caught.value)
    home = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/fourclass_scale"
    for part in (
        "fourclass_scale is not in",
        str(tmp_path),
        home,
        "download=True",
        "--download",
        "data_dir=",
        "HIERAX_DATA",
    ):
        assert part in text
    for source in datasets.SOURCES.values():
        if datasets.availability(source).now:
            datasets.load(source.name)


# -- download ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch):
    """Serves what `server.content` says, on this machine; `server.asked` counts."""
    pytest.importorskip("pooch")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked += 1
            self.send_response(200 if self.server.content is not None else 404)
            self.end_headers()
            self.wfile.write(self.server.content or b"")

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.asked = 0
        running.content = small_fourclass(monkeypatch, f"http://127.0.0.1:{running.server_port}/fourclass_scale")
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()
    drop_sockets()


def test_download_only_when_asked_and_once(server, tmp_path):
    with pytest.raises(datasets.MissingData):
        datasets.load("fourclass")
    assert server.asked == 0
    assert datasets.load("fourclass", download=True).features.shape == (3, 2)
    assert (tmp_path / "cache" / "fourclass_scale").read_bytes() == server.content
    assert datasets.load("fourclass", download=True).features.shape == (3, 2)
    assert datasets.load("fourclass").features.shape == (3, 2)
    assert server.asked == 1


def test_a_damaged_download_is_fetched_again(server, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "fourclass_scale").write_text("half a fi")
    with pytest.raises(datasets.MissingData, match="is not the file of"):
        datasets.load("fourclass")
    assert datasets.load("fourclass", download=True).features.shape == (3, 2)


def test_a_file_in_the_folder_is_not_downloaded(server, tmp_path):
    (tmp_path / "fourclass_scale").write_bytes(server.content)
    datasets.load("fourclass", data_dir=tmp_path, download=True)
    assert server.asked == 0


def test_a_wrong_download_is_thrown_away(server, tmp_path):
    server.content += b"+1 1:1 2:1 \n"
    with pytest.raises(datasets.MissingData, match=r"sent is not the fourclass_scale .*thrown away.*data_dir="):
        datasets.load("fourclass", download=True)
    assert not (tmp_path / "cache" / "fourclass_scale").exists()


def test_a_page_that_is_gone_is_told(server):
    server.content = None
    with pytest.raises(datasets.MissingData, match=r"could not be downloaded from http://127.*404.*HIERAX_DATA"):
        datasets.load("fourclass", download=True)


def test_offline_is_told(monkeypatch):
    pytest.importorskip("pooch")
    with socket.socket() as unused:  # bound, not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        small_fourclass(monkeypatch, f"http://127.0.0.1:{unused.getsockname()[1]}/fourclass_scale")
        with pytest.raises(
            datasets.MissingData, match=r"could not be downloaded .*ConnectionError.*data_dir=.*HIERAX_DATA"
        ):
            datasets.load("fourclass", download=True)
    drop_sockets()


def test_missing_packages_print_the_pip_line(monkeypatch):
    for name in ("sklearn", "pooch"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"digits is scikit-learn's: pip install hierax-lab"):
        datasets.load("digits")
    with pytest.raises(MissingExtra, match=r"fourclass_scale needs pooch: pip install hierax-lab"):
        datasets.load("fourclass", download=True)


def test_without_pooch_there_are_no_earlier_downloads(monkeypatch):
    monkeypatch.undo()  # the real _cache
    monkeypatch.delenv("HIERAX_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert files._cache() is None
    with pytest.raises(datasets.MissingData, match="fourclass_scale is not here"):
        datasets.load("fourclass")


def test_downloads_are_kept_in_the_cache_folder_of_hierax(tmp_path, monkeypatch):
    pytest.importorskip("pooch")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert files._cache().parts[-2:] == ("hierax", "data")


# -- arguments --------------------------------------------------------------------------------------------------------


def test_unknown_names_and_forms():
    with pytest.raises(InputError, match=r"'iris': there is no such data set; there are diabetes, fourclass"):
        datasets.load("iris")
    with pytest.raises(InputError, match=r"scaled=True: pendigits has no scaled form.*datasets\.scale"):
        datasets.load("pendigits", scaled=True)


# -- helpers ----------------------------------------------------------------------------------------------------------


def test_splits_are_disjoint_and_fixed_by_the_seed():
    data = MADE_UP
    parts = datasets.splits(data, (500, 100, 168), seed=3)
    assert [len(part) for part in parts] == [500, 100, 168]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(768))
    for part, again in zip(parts, datasets.splits(data, (500, 100, 168), seed=3), strict=True):
        np.testing.assert_array_equal(part, again)
    np.testing.assert_array_equal(datasets.splits(data, (500, 7), seed=3)[0], parts[0])
    assert (datasets.splits(data, (500,), seed=4)[0] != parts[0]).any()


@pytest.mark.parametrize("sizes", [(500, 300), (0, 10), (), (0.5, 0.5), (-1,), 5])
def test_splits_wants_row_counts(sizes):
    with pytest.raises(InputError, match="sizes="):
        datasets.splits(MADE_UP, sizes, seed=0)


def test_quadratic_features_in_order():
    x, y, z = 2.0, 3.0, 5.0
    expected = [x, y, z, x * x, x * y, x * z, y * y, y * z, z * z]
    np.testing.assert_array_equal(datasets.quadratic_features(np.array([[x, y, z]])), [expected])
    made = datasets.quadratic_features(MADE_UP.features)
    assert made.shape == (768, 44)
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    reference = preprocessing.PolynomialFeatures(2, include_bias=False).fit_transform(MADE_UP.features)
    np.testing.assert_allclose(made, reference, rtol=1e-15)


def test_scale_by_column():
    table = np.array([[0.0, 7.0, -3.0], [10.0, 7.0, -1.0], [5.0, 7.0, -2.5]])
    np.testing.assert_array_equal(datasets.scale(table), [[-1, 0, -1], [1, 0, 1], [0, 0, -0.5]])


@pytest.mark.parametrize("helper", [datasets.scale, datasets.quadratic_features])
def test_helpers_want_a_matrix(helper):
    with pytest.raises(InputError, match=r"features: needs a matrix .* \(3,\)"):
        helper(np.ones(3))


# -- command line and docs --------------------------------------------------------------------------------------------


@pytest.fixture
def cli(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("hierax.cli._keep_programs", lambda: None)
    return lambda *args: CliRunner().invoke(app, ["datasets", *args])


def squeezed(text):
    return re.sub(r"\s+", "", text)


def test_command_prints_the_table(cli):
    answer = cli()
    assert answer.exit_code == 0
    assert max(map(len, answer.output.splitlines())) <= 80
    for source in datasets.SOURCES.values():
        size = f"{source.rows} x {source.columns}"
        for part in (source.name, size, source.origin, source.licence, source.sha256, source.home):
            assert squeezed(part) in squeezed(answer.output)
    assert answer.output.count("yes, bundled") == 1
    assert "no: --download fourclass" in answer.output


def test_command_finds_and_downloads(cli, server, tmp_path):
    assert "no: --download" in cli().output
    answer = cli("--download", "fourclass")
    assert answer.exit_code == 0, answer.output
    assert server.asked == 1
    assert squeezed(f"yes, {tmp_path / 'cache' / 'fourclass_scale'}") in squeezed(answer.output)
    assert "no: --download" not in cli().output
    (tmp_path / "fourclass_scale").write_bytes(b"")
    assert squeezed(f"yes, {tmp_path / 'fourclass_scale'}") in squeezed(cli("--data-dir", str(tmp_path)).output)


def test_command_reports_mistakes_in_one_line(cli, server):
    server.content = None
    for name, text in (("fourclass", "could not be downloaded"), ("iris", "there is no such data set")):
        answer = cli("--download", name)
        assert answer.exit_code == 1
        assert text in answer.output
        assert "Traceback" not in answer.output


def test_command_without_sklearn(cli, monkeypatch):
    found = files.importlib.util.find_spec
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None if name == "sklearn" else found(name))
    assert cli().output.count("no: pip install hierax-lab") == 2


def test_docs_show_the_table_and_run(capsys):
    text = (ROOT / "docs" / "guides" / "datasets.md").read_text()
    for source in datasets.SOURCES.values():
        cells = [
            f"`{source.name}`",
            f"{source.rows} x {source.columns}",
            source.classes,
            f"{source.origin}; {source.home}",
            source.licence,
            f"{source.kind}, `{source.file}`",
            f"`{source.sha256}`",
        ]
        assert f"| {' | '.join(cells)} |\n" in text
    pytest.importorskip("sklearn")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out == "breast-cancer (569, 495) (300,) benign\n"


def test_value_hash_does_not_depend_on_memory_order():
    features, labels = np.arange(6.0).reshape(2, 3), np.array([0, 1])
    expected = io.BytesIO()
    for values, dtype in ((features, "<f8"), (labels, "<i8")):
        for value in values.ravel():
            expected.write(np.array(value, dtype).tobytes())
    assert loading.value_hash(np.asfortranarray(features), labels) == hashlib.sha256(expected.getvalue()).hexdigest()
