import pytest

from sanderling.core.errors import OptionError
from sanderling.workshop.learning.selection import parse_lora


def names(spec):
    return [parameter.name for parameter in spec.parameters]


def test_head_is_the_last_layer(learn):
    spec, _, _ = learn("cnn", "head")
    assert names(spec) == ["8.weight", "8.bias"]


def test_expression_finds_parameters_by_name(learn):
    spec, _, _ = learn("bert", r"layers\.1\.(query|key)")
    assert names(spec) == [f"layers.1.{part}.{kind}" for part in ("query", "key") for kind in ("weight", "bias")]


def test_parameter_that_is_not_used_is_left_out(learn):
    spec, _, _ = learn("bert", "full")
    assert not [name for name in names(spec) if name.startswith("pooler")]


def test_parameter_that_is_shared_is_trained_once(learn):
    spec, _, _ = learn("tied_llama", "full")
    assert names(spec).count("embed.weight") == 1
    assert "lm_head.weight" not in names(spec)
    assert spec.golden.error < 1e-5


def test_adapters_are_put_beside_layers_that_are_found(learn):
    spec, _, _ = learn("bert", "lora:r=3,alpha=6,head,layers=query|value")
    assert [adapter.layer for adapter in spec.adapters] == [
        f"layers.{i}.{part}" for i in (0, 1) for part in ("query", "value")
    ]
    assert names(spec)[-2:] == ["classifier.weight", "classifier.bias"]
    assert spec.adapters[0].scale == 2


def test_depthwise_layer_gets_no_adapter_and_is_named(learn):
    _, _, events = learn("depthwise", "lora:r=2")
    skipped = [event.subject for event in events if event.kind == "adapter-skipped"]
    assert skipped == ["1", "7"]


def test_head_is_that_of_the_output_that_the_loss_looks_at(learn):
    spec, _, _ = learn("two_heads", "head")
    assert names(spec) == ["scores.weight", "scores.bias"]
    assert spec.golden.error < 1e-5


def test_layer_that_the_loss_does_not_look_at_gets_no_adapter(learn):
    spec, _, events = learn("two_heads", "lora:r=2")
    assert [adapter.layer for adapter in spec.adapters] == ["body", "scores"]
    assert [event.subject for event in events if event.kind == "adapter-skipped"] == ["other"]


def test_weight_that_a_table_shares_gets_no_adapter_as_folding_would_change_both(learn):
    spec, _, events = learn("tied_llama", "lora:r=2")
    assert "embed.weight" not in [adapter.weight for adapter in spec.adapters]
    reasons = {event.subject: event.reason for event in events if event.kind == "adapter-skipped"}
    assert reasons == {"embed": "its weight is used several times"}
    assert spec.golden.error < 1e-5


@pytest.mark.parametrize(
    ("trainable", "told"),
    [
        ("nothing_of_that_name", "finds no parameter: available are 1.weight, 1.bias"),
        ("(", "is no regular expression"),
        ("lora:layers=nowhere", "finds no layer for an adapter: layers are 1, 4"),
    ],
)
def test_nothing_to_train_is_refused_with_what_there_is(learn, trainable, told):
    with pytest.raises(OptionError) as error:
        learn("mlp", trainable)
    assert told in str(error.value)


@pytest.mark.parametrize("text", ["lora:r=0", "lora:r=two", "lora:alpha=0", "lora:rank=8", "lora:alpha=inf"])
def test_wrong_lora_is_refused(text):
    with pytest.raises(OptionError, match="--trainable"):
        parse_lora(text)


def test_lora_is_read():
    assert parse_lora("head") is None
    assert (parse_lora("lora").rank, parse_lora("lora:r=4").alpha) == (8, 8)
    assert parse_lora("lora:r=4,layers=a{1,2}").layers == "a{1,2}"
