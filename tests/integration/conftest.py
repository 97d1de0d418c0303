"""The command line as users start it, and small files and packages for it to work on."""

import hashlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from sanderling.api import build
from sanderling.cli import main
from sanderling.core.errors import UnavailableError
from sanderling.core.progress import Silent
from sanderling.demo.photos import CALIBRATION, EVALUATION, find_photos, write_crops
from sanderling.demo.story import ARGUMENTS, MODEL, PREPROCESSING, find_weights
from tests.models import conv_classifier, save
from tests.samples import write_samples
from tests.sentences import sentence_model, word_tokenizer
from tests.tiny_text import tiny_text_package

COMMAND = Path(sys.executable).with_name("sanderling")
TIMEOUT_S = 120
LITE0_CROPS = 24
ONNXRUNTIME_SESSION = ".ses"  # importing onnxruntime 1.32 writes this into the temporary folder
STAGE_STARTS = (
    "note: ",
    "train, epoch ",
    "check for ",
    "write .ort",
    "write IR",
    "build for ",
    "run golden vectors",
    "compare first classes",
    "reach ",
    "copy to ",
    "verify on ",
    "measure on ",
    "read data of ",
    "export ",
    "join ",
)
STAGES = {
    "read ONNX",
    "load PyTorch module",
    "export to ONNX",
    "compare ONNX with PyTorch",
    "read calibration data",
    "read evaluation data",
    "simplify",
    "calibrate: ranges",
    "calibrate: histograms",
    "convert to FP16",
    "capture the module",
    "quantise to INT8",
    "round weights by second moments",
    "measure sensitivity",
    "check the engine's optimiser",
    "search mixed precision",
    "measure accuracy",
    "measure latency",
    "look at the source",
    "convert",
    "score texts with FP32",
    "measure speed",
    "measure perplexity",
    "measure memory",
    "hashes",
    "golden vectors",
    "read",
    "look at the graph",
    "ask engines",
    "look at the inputs",
    "try other inputs",
    "observe ranges",
    "compare with fp16",
    "compare with int8",
    "compare with none.onnx",
    "load the branches",
    "read pictures",
    "choose a variant for each branch",
    "compute features",
    "write the way back",
    "compare gradients with PyTorch",
}


@dataclass(frozen=True)
class Finished:
    """What a command left: its exit code and what it printed."""

    code: int
    stdout: str
    stderr: str

    @property
    def error(self):
        """The one line that says what is wrong; there may be progress before it, and nothing else."""
        *progress, last = self.stderr.splitlines() or [""]
        strange = [line for line in progress if line not in STAGES and not line.startswith(STAGE_STARTS)]
        assert strange == [], f"besides progress, stderr has:\n{self.stderr}"
        assert last.startswith("sanderling: error: "), f"the last line is no error:\n{self.stderr}"
        return last.removeprefix("sanderling: error: ")

    @property
    def answer(self):
        """The one JSON object on stdout."""
        assert self.stdout.count("\n") == 1, f"expected one line of JSON, got:\n{self.stdout}"
        return json.loads(self.stdout)


def tree(*folders):
    """Every path below the folders, hidden ones too, with the hash of its bytes."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.name != ONNXRUNTIME_SESSION
    }


@pytest.fixture
def work(tmp_path):
    """Folder that commands run in, and that holds their inputs."""
    for name in ("work", "out", "temp"):
        (tmp_path / name).mkdir()
    return tmp_path / "work"


@pytest.fixture
def out(work):
    """Folder for outputs, empty at first."""
    return work.parent / "out"


@pytest.fixture
def environment(work):
    """Environment of a command: its own cache and temporary folder, and no byte code beside the user's files."""
    own = {"SANDERLING_CACHE": str(work.parent / "cache"), "TMPDIR": str(work.parent / "temp"), "COLUMNS": "1000"}
    return {**os.environ, **own, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def sanderling(work, environment):
    """Run ``sanderling ARGUMENTS…`` as a process; with ``without``, where those modules cannot be imported."""

    def run(*arguments, without=()):
        blocked = f"import sys; sys.modules.update(dict.fromkeys({list(without)!r})); "
        blocking = [sys.executable, "-c", blocked + "from sanderling.cli import main; main()"]
        done = subprocess.run(
            [*(blocking if without else [str(COMMAND)]), *map(str, arguments)],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def forget_modules(work):
    """Afterwards, forget the modules that were imported from ``work``: the next test's are other files."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(work):
            del sys.modules[name]


@pytest.fixture
def sanderling_here(work, environment, monkeypatch, capfd, forget_modules):  # noqa: ARG001
    """The same inside the test's process, where PyTorch is loaded only once; native code's output is seen too."""
    monkeypatch.setattr(tempfile, "tempdir", environment["TMPDIR"])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("SANDERLING_CACHE", "COLUMNS"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.chdir(work)
    handler = signal.getsignal(signal.SIGTERM)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["sanderling", *map(str, arguments)])
        importlib.invalidate_caches()
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Finished(ended.value.code or 0, *capfd.readouterr())

    yield run
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def refused(sanderling, work):
    """Run a command that must refuse, as a process: see ``check_refusal``."""
    return lambda *arguments, **expected: check_refusal(sanderling, work, *arguments, **expected)


@pytest.fixture
def refused_here(sanderling_here, work):
    """The same inside the test's process."""
    return lambda *arguments, **expected: check_refusal(sanderling_here, work, *arguments, **expected)


def check_refusal(run, work, *arguments, says, code=2, **options):
    """One clear line that contains every text of ``says``, the exit code, the same line as JSON, and no trace."""
    watched = [work, work.parent / "out", work.parent / "temp"]
    before = tree(*watched)
    done = run(*arguments, "--json", **options)
    for text in [says] if isinstance(says, str) else says:
        assert text in done.error, f"'{text}' is not said in: {done.error}"
    assert done.code == code, done.stderr
    assert done.answer["error"].keys() == {"type", "message"}
    assert done.answer["error"]["message"] == done.error
    assert tree(*watched) == before, "the command left something behind, or changed a file"
    return done


@pytest.fixture
def classifier(work):
    """ONNX file: ``image`` float32[N, 3, 8, 8] to ``scores`` float32[N, 4]."""
    return save(conv_classifier(), work / "classifier.onnx")


@pytest.fixture
def calibration(work):
    """160 samples for ``classifier``."""
    return write_samples(work / "calibration.npz")


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The result of building the classifier with all three variants; use ``package`` to change it."""
    folder = tmp_path_factory.mktemp("built")
    source = save(conv_classifier(), folder / "classifier.onnx")
    samples = write_samples(folder / "calibration.npz")
    labels = folder / "labels.txt"
    labels.write_text("cat\ndog\nbird\nfish\n")
    return build(
        source,
        folder / "model.sdl",
        calibration=samples,
        budget="agreement=20",
        preprocess="unit",
        labels=str(labels),
        repeats=5,
    )


@pytest.fixture
def package(work, built):
    """A copy of the built package, ``work/model.sdl``."""
    return Path(shutil.copytree(built.path, work / "model.sdl"))


@pytest.fixture(scope="session")
def chat_package(tmp_path_factory):
    """A small language model with random weights, called ``chat``."""
    return tiny_text_package(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="session")
def sentence_package(tmp_path_factory):
    """A small model of sentences with its tokenizer, called ``sentences``."""
    folder = tmp_path_factory.mktemp("sentences")
    source, tokenizer = sentence_model(folder / "sentences.onnx"), word_tokenizer(folder / "words.json")
    asked = {"task": "embeddings", "tokenizer": tokenizer, "precision": "fp32", "repeats": 1}
    return build(source, folder / "sentences.sdl", **asked).path


@pytest.fixture(scope="session")
def lite0(tmp_path_factory):
    """EfficientNet-Lite0 in FP32 and INT8, and the crops that it was evaluated on beside it."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("lite0")
    try:
        weights, known, others = find_weights(), find_photos(CALIBRATION), find_photos(EVALUATION)
    except UnavailableError as error:
        pytest.skip(str(error))
    for photos, name in ((known, "calibration"), (others, "evaluation")):
        write_crops(photos, folder / name, count=LITE0_CROPS, seed=3, progress=Silent())
    return build(
        MODEL,
        folder / "lite0.sdl",
        factory_arguments=ARGUMENTS,
        weights=weights,
        inputs=["input=1,3,224,224"],
        dynamic=["batch"],
        calibration=folder / "calibration",
        evaluation=folder / "evaluation",
        precision="int8",
        preprocess=json.dumps(PREPROCESSING),
        repeats=1,
    ).path
