"""`sanderling policy` as users start it."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest

import sanderling
from sanderling.model.package import Package, write_zip
from sanderling.run.policy.document import policy_schema, read_policy

DATA = Path(__file__).parents[1] / "data"
ARTICLE = DATA / "inference-policy.json"


@pytest.fixture
def article(work):
    return Path(shutil.copy(ARTICLE, work / "policy.json"))


def test_check_says_when_devices_are_left_and_marks_defaults(sanderling_here, article):
    done = sanderling_here("policy", "check", article)

    assert (done.code, done.stderr) == (0, "")
    assert "npu: left after an error or 3 batches in a row over 15 ms" in done.stdout
    assert "at 75 °C, until it is at 65 °C (default)" in done.stdout
    given, defaults = done.stdout.split("by default", 1)
    assert "batchTuning.maxBatchSize" in given
    assert "scheduling.utilizationCap" in defaults


def test_check_answers_with_every_value_and_what_the_file_gave(sanderling_here, article):
    answer = sanderling_here("policy", "check", article, "--json").answer

    assert answer["policy"] == json.loads(read_policy(ARTICLE).to_text())
    assert answer["given"] == [
        "batchTuning.latencyTarget",
        "batchTuning.maxBatchSize",
        "batchTuning.minBatchSize",
        "devicePriorities",
        "fallbackThresholds",
    ]


def test_check_of_an_unknown_key_is_one_line_with_what_may_have_been_meant(refused, work):
    (work / "policy.json").write_text('{"batchTuning": {"maxBatchSise": 8}}')

    said = "policy.json: unknown key 'batchTuning.maxBatchSise'; did you mean 'maxBatchSize'?"
    refused("policy", "check", "policy.json", says=said)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[]", b'{"a": 1, "a": 1}', b"{" * 100_000, b" " * (2 << 20)])
def test_check_of_a_file_that_is_no_policy_is_one_line(refused_here, work, data):
    (work / "policy.json").write_bytes(data)

    refused_here("policy", "check", "policy.json", says="policy.json")


def test_check_of_a_missing_file_is_one_line(refused_here):
    refused_here("policy", "check", "nothing.json", says="nothing.json cannot be read: No such file")


def test_schema_is_printed(sanderling_here):
    assert json.loads(sanderling_here("policy", "schema").stdout) == policy_schema()
    assert sanderling_here("policy", "schema", "--json").answer == policy_schema()


def test_example_can_be_checked_as_it_is(sanderling_here, work):
    (work / "example.json").write_text(sanderling_here("policy", "example").stdout, encoding="utf-8")

    assert sanderling_here("policy", "check", "example.json").code == 0
    assert sanderling_here("policy", "example", "--json").answer == json.loads((work / "example.json").read_text())


def test_policy_is_attached_to_a_folder_and_replaced(sanderling_here, package, article):
    first = sanderling_here("policy", "attach", package, article, "--json").answer
    again = sanderling_here("policy", "attach", package, DATA / "memory-policy.json", "--json").answer

    assert (first["replaced"], again["replaced"]) == (False, True)
    assert read_policy(Package.open(package).file("policy.json")).max_model_cache == 3
    assert (package / "policy.json").read_bytes() == (DATA / "memory-policy.json").read_bytes()
    assert sanderling.verify(package).passed


def test_policy_is_attached_to_a_zip(sanderling_here, package, article, work):
    write_zip(package, work / "model.sdl.zip")

    assert sanderling_here("policy", "attach", "model.sdl.zip", article).code == 0
    with zipfile.ZipFile(work / "model.sdl.zip") as archive:
        assert archive.read("policy.json") == article.read_bytes()
    assert "policy.json" in Package.open(work / "model.sdl.zip").manifest.files


def test_wrong_policy_is_not_attached(refused_here, package, work):
    (work / "policy.json").write_text('{"isolation": "jail"}')

    refused_here("policy", "attach", package, "policy.json", says=["isolation", "'thread' or 'process'", "'jail'"])


def test_policy_is_not_attached_to_a_damaged_package(refused_here, package, article):
    (package / "golden.npz").write_bytes(b"changed")

    refused_here("policy", "attach", package, article, says="golden.npz")


def test_policy_is_not_attached_to_what_is_no_package(refused_here, article, work):
    (work / "folder").mkdir()

    refused_here("policy", "attach", "folder", article, says="is no package")
