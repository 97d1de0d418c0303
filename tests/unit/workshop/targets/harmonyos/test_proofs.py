from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from sanderling.core.progress import Silent
from sanderling.workshop.targets.harmonyos import toolchain
from sanderling.workshop.targets.harmonyos.module import FILES, MODULE
from sanderling.workshop.targets.harmonyos.proofs import (
    IMPORTS,
    check_sources,
    prove_project,
    replay_vectors,
    run_golden,
)
from tests.unit.workshop.targets.harmonyos.conftest import model_entry

pytestmark = pytest.mark.usefixtures("arkts")
SOURCES = f"{MODULE}/src/main/ets"
FAULTS = {
    "export const answer: any = 42;": "arkts-no-any-unknown",
    "export const answer: number = 'text';": "is not assignable to type 'number'",
    "const pair = { one: 1 };\nexport const one = pair.one;": "arkts-no-untyped-obj-literals",
    "export function broken( {": "expected",
    "import { nothing } from '@kit.MindSporeLiteKit';\nexport const found: number = nothing;": "no exported member",
    "class A { n: number = 0; }\nclass B { n: number = 0; }\nexport const b: B = new A();": "arkts-no-structural",
}


@pytest.fixture
def copied(project, tmp_path):
    return shutil.copytree(project, tmp_path / "project")


def test_project_keeps_types_and_rules_and_computes_what_the_package_does(package, project):
    proofs, remaining = prove_project(package, project, _models(project), Silent())
    assert remaining == ()
    assert all(proof.passed for proof in proofs), proofs
    told = " ".join(proof.what for proof in proofs)
    for part in (".ets files", "policy's test vectors", "prepared as on the host", "lane mindspore/cpu/int8", "queue"):
        assert part in told


def test_faults_are_found_and_named(copied):
    for index, text in enumerate(FAULTS):
        (copied / SOURCES / f"fault{index}.ets").write_text(text)
    told = json.loads(toolchain.run_script("check.js", [str(copied), *IMPORTS]))
    for index, expected in enumerate(FAULTS.values()):
        found = [each["message"] for each in told["findings"] if each["file"].endswith(f"fault{index}.ets")]
        assert any(expected in message for message in found), (index, found)


def test_fault_fails_the_proof(copied):
    (copied / SOURCES / "fault.ets").write_text(next(iter(FAULTS)))
    proof = check_sources(copied)
    assert not proof.passed
    assert (proof.value, proof.limit) == (1.0, 0.0)
    assert f"{SOURCES}/fault.ets:1 Use explicit types" in proof.what


def test_decision_that_differs_is_found_and_named(copied):
    file = copied / SOURCES / "policy" / "scheduling.ets"
    file.write_text(file.read_text().replace("nowMs + shortestMs > deadlineMs", "nowMs + shortestMs >= deadlineMs"))
    proof = replay_vectors(copied)
    assert not proof.passed
    assert "scheduling.is_late" in proof.what


def test_module_that_computes_something_else_fails_its_proofs(package, copied):
    file = copied / SOURCES / "mindspore.ets"
    given = "tensor.setData(this.bytesFor(tensor, inputs))"
    assert given in file.read_text()
    file.write_text(file.read_text().replace(given, "tensor.setData(new ArrayBuffer(tensor.dataSize))"))
    proofs = list(run_golden(package, copied, _models(copied)))
    assert len(proofs) == 3
    assert not any(proof.passed for proof in proofs)


def test_rounding_another_way_passes_where_it_is_as_close_to_fp32(package, copied):
    file = copied / FILES / "package.json"
    description = json.loads(file.read_text())
    description["golden"]["tolerance"]["int8"] = 1e-12
    file.write_text(json.dumps(description))
    reference, *_ = [array for array in description["golden"]["arrays"] if array["variant"] == "int8"]
    golden = copied / FILES / "golden.bin"
    data = bytearray(golden.read_bytes())
    values = np.frombuffer(data, np.float32, reference["sizeBytes"] // 4, reference["offset"])
    values *= np.float32(1 + 1e-3)  # what another rounding may do, 60 dB below
    golden.write_bytes(data)
    first, *_ = run_golden(package, copied, _models(copied))
    assert first.passed
    assert first.limit is None
    assert "as close to FP32 as the variant" in first.what


def _models(project):
    folder = project / FILES
    return [model_entry(name, folder / f"{name}.ms") for name in ("int8", "fp32")]
