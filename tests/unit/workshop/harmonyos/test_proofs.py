from __future__ import annotations

import shutil

import pytest

from sanderling.core.progress import Silent
from sanderling.workshop.targets.harmonyos.module import MODULE
from sanderling.workshop.targets.harmonyos.proofs import check_sources, prove_project, replay_vectors
from tests.unit.workshop.harmonyos.conftest import model_entry

pytestmark = pytest.mark.usefixtures("arkts")
SOURCES = f"{MODULE}/src/main/ets"
FAULTS = {
    "export const answer: any = 42;": "arkts-no-any-unknown",
    "export const answer: number = 'text';": "is not assignable to type 'number'",
    "const pair = { one: 1 };\nexport const one = pair.one;": "arkts-no-untyped-obj-literals",
    "export function broken( {": "expected",
    "import { nothing } from '@kit.MindSporeLiteKit';\nexport const found: number = nothing;": "no exported member",
    "class A { n: number = 0; }\nclass B { n: number = 0; }\nexport const b: B = new A();": "arkts-no-structural-typing",
}


@pytest.fixture
def copied(project, tmp_path):
    return shutil.copytree(project, tmp_path / "project")


def test_project_keeps_types_and_rules_and_computes_what_the_package_does(package, project):
    models = [
        model_entry(name, project / "entry/src/main/resources/rawfile/sanderling" / f"{name}.ms")
        for name in ("int8", "fp32")
    ]
    proofs = prove_project(package, project, models, Silent())
    assert all(proof.passed for proof in proofs), proofs
    told = " ".join(proof.what for proof in proofs)
    for part in (".ets files", "policy's test vectors", "prepared as on the host", "lane mindspore/cpu/int8", "queue"):
        assert part in told


@pytest.mark.parametrize("text", FAULTS)
def test_fault_in_a_file_is_found_and_named(copied, text):
    (copied / SOURCES / "fault.ets").write_text(text)
    proof = check_sources(copied)
    assert not proof.passed
    assert proof.value is not None
    assert proof.value >= 1
    assert "fault.ets" in proof.what
    assert FAULTS[text] in proof.what


def test_decision_that_differs_is_found_and_named(copied):
    file = copied / SOURCES / "policy" / "scheduling.ets"
    file.write_text(file.read_text().replace("nowMs + shortestMs > deadlineMs", "nowMs + shortestMs >= deadlineMs"))
    proof = replay_vectors(copied)
    assert not proof.passed
    assert "scheduling.is_late" in proof.what


def test_module_that_computes_something_else_fails_its_proof(package, copied):
    file = copied / SOURCES / "tensor.ets"
    file.write_text(file.read_text().replace("start * rowBytes, end * rowBytes", "0, (end - start) * rowBytes"))
    folder = copied / "entry/src/main/resources/rawfile/sanderling"
    models = [model_entry(name, folder / f"{name}.ms") for name in ("int8", "fp32")]
    golden = [proof for proof in prove_project(package, copied, models, Silent()) if "golden" in proof.what]
    assert golden
