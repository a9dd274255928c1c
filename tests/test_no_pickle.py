"""Nothing that is read can run code: no pickle, on the wire, in checkpoints or anywhere else."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path for package in ("protos", "actor", "learner") for path in (ROOT / package).rglob("*.py")
)

RUNS_CODE = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
"""Modules whose readers run what the writer wants."""


OWN_SOURCE = {"learner/numpy_graph.py": ["exec"]}
"""Who runs code that this project has written at run time: nothing in it is read from anywhere."""


def offences(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            if name.partition(".")[0] in RUNS_CODE:
                yield f"line {node.lineno}: imports {name}"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load"):
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if given.get("allow_pickle") != "False":
                yield f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.Name) and node.id in ("eval", "exec"):
            yield f"line {node.lineno}: {node.id}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_reads_pickles(path: Path) -> None:
    found = [offence.partition(": ")[2] for offence in offences(path.read_text(encoding="utf-8"))]
    assert found == OWN_SOURCE.get(str(path.relative_to(ROOT)), [])


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import numpy, cloudpickle.cloudpickle",
        "from marshal import loads",
        "def f():\n    import dill as json",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=chosen)",
        "eval(text)",
    ],
)
def test_one_would_be_noticed(source: str) -> None:
    assert len(list(offences(source))) == 1


def test_what_is_harmless_is_not() -> None:
    assert list(offences("import json\nnp.load(path, allow_pickle=False)\nmodel.eval()")) == []
