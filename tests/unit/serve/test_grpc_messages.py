from __future__ import annotations

import re
from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from sanderling.serve.grpc_ import inference_pb2

PROTO = Path(inference_pb2.__file__).with_name("inference.proto")
OURS = inference_pb2.DESCRIPTOR
PART_OF_THE_CLIENTS = set(model_config_pb2.DESCRIPTOR.message_types_by_name)  # as much of them as this server can say


def messages(descriptor):
    """All messages of a file or message, nested ones too, by full name."""
    nested = getattr(descriptor, "message_types_by_name", None) or {}
    nested = nested or {each.name: each for each in getattr(descriptor, "nested_types", ())}
    found = {}
    for each in nested.values():
        found[each.full_name] = each
        found |= messages(each)
    return found


def fields(message):
    """What a field is on the wire, by name."""
    return {
        field.name: (
            field.number,
            field.type,
            field.is_repeated,
            field.message_type.full_name if field.message_type else "",
            field.containing_oneof.name if field.containing_oneof else "",
        )
        for field in message.fields
    }


THEIRS = messages(service_pb2.DESCRIPTOR) | messages(model_config_pb2.DESCRIPTOR)


@pytest.mark.parametrize("name", sorted(messages(OURS)))
def test_message_is_the_clients(name):
    ours, theirs = fields(messages(OURS)[name]), fields(THEIRS[name])
    if name.split(".")[1] in PART_OF_THE_CLIENTS:
        theirs = {key: theirs[key] for key in ours}
    assert ours == theirs


def test_every_message_of_the_clients_service_is_there():
    assert messages(service_pb2.DESCRIPTOR).keys() <= messages(OURS).keys()


def test_calls_are_the_clients():
    def calls(file):
        (service,) = file.services_by_name.values()
        return service.full_name, {
            call.name: (
                call.input_type.full_name,
                call.output_type.full_name,
                call.client_streaming,
                call.server_streaming,
            )
            for call in service.methods
        }

    assert calls(OURS) == calls(service_pb2.DESCRIPTOR)


@pytest.mark.parametrize("name", ["DataType"])
def test_numbers_of_datatypes_are_the_clients(name):
    ours, theirs = (file.enum_types_by_name[name].values for file in (OURS, model_config_pb2.DESCRIPTOR))
    assert {each.name: each.number for each in ours} == {each.name: each.number for each in theirs}


def test_generated_module_is_current():
    text = re.sub(r"//.*", "", PROTO.read_text())
    written = sorted(re.findall(r"[\w<>., ]+?(\w+) = (\d+);", text))
    kept = [(field.name, str(field.number)) for message in messages(OURS).values() for field in message.fields]
    kept = [each for each in kept if each not in (("key", "1"), ("value", "2"))]  # of maps
    values = [
        (value.name, str(value.number))
        for enums in (OURS.enum_types_by_name.values(), *(message.enum_types for message in messages(OURS).values()))
        for enum in enums
        for value in enum.values
    ]
    assert sorted(each for each in written if each not in (("key", "1"), ("value", "2"))) == sorted(kept + values)
