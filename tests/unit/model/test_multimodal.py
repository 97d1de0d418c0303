import pytest
from pydantic import ValidationError

from sanderling.core.tensor import TensorSpec
from sanderling.model.multimodal import BranchSpec, MultimodalSpec, TokenizerSpec, joint_fault

PICTURE = BranchSpec(name="vision", modality="picture", folder="branches/vision.sdl")
TEXT = BranchSpec(
    name="text", modality="text", folder="branches/text.sdl", tokenizer=TokenizerSpec(file="t.json", longest=4)
)
FUSION = BranchSpec(name="fusion", modality="fusion", folder="branches/fusion.sdl", takes={"x": "vision", "y": "text"})


def spec(*branches: BranchSpec, task: str = "visual-question-answering", variants=None) -> MultimodalSpec:
    return MultimodalSpec(task=task, branches=branches, variants=variants or {})


def features(name: str, *shape: int | str, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


@pytest.mark.parametrize(
    ("branches", "fault"),
    [
        ((), "no branches"),
        ((PICTURE, TEXT), "one branch of each"),
        ((PICTURE, PICTURE, FUSION), "stands twice"),
        ((FUSION, PICTURE, TEXT), "takes from"),
    ],
)
def test_branches_that_make_no_graph_are_refused_with_the_fault(branches, fault):
    with pytest.raises(ValidationError, match=fault):
        spec(*branches)


def test_a_variant_must_name_every_branch():
    with pytest.raises(ValidationError, match="the branches are vision, text, fusion"):
        spec(PICTURE, TEXT, FUSION, variants={"fp32": {"vision": "fp32"}})


def test_a_text_branch_needs_a_tokenizer_and_a_picture_branch_has_none():
    with pytest.raises(ValidationError, match="text needs one"):
        BranchSpec(name="text", modality="text", folder="x")
    with pytest.raises(ValidationError, match="a tokenizer is for text"):
        BranchSpec(name="vision", modality="picture", folder="x", tokenizer=TEXT.tokenizer)


def test_leaves_and_fusion_are_told_apart():
    found = spec(PICTURE, TEXT, FUSION)
    assert [leaf.name for leaf in found.leaves] == ["vision", "text"]
    assert found.fusion is FUSION or found.fusion == FUSION
    assert found.leaf("text").name == "text"
    assert spec(PICTURE, TEXT, task="image-text-matching").fusion is None


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (features("a", "N", 4), None),
        (features("a", "N", 5), "gives a: float32"),
        (features("a", "N", 4, 1), "expects x"),
        (features("a", "N", 4, dtype="float16"), "float16"),
    ],
)
def test_a_fusion_takes_only_outputs_of_its_own_shape_and_dtype(given, fault):
    inputs = (features("x", "batch", 4), features("y", "batch", 4))
    found = joint_fault("fusion", FUSION.takes, inputs, {"vision": given, "text": features("b", "M", 4)})
    assert found is None if fault is None else fault in found


def test_a_fusion_with_other_inputs_than_it_takes_does_not_fit():
    found = joint_fault("fusion", FUSION.takes, (features("z", "N", 4),), {})
    assert "it takes x, y" in found
