from __future__ import annotations

from pathlib import Path

import pytest

from sanderling.core.errors import OptionError
from sanderling.serve.http.server import tls_context
from sanderling.serve.settings import Limits, Settings

PACKAGES = (Path("tiny.sdl"),)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"packages": ()}, "nothing to serve"),
        ({"http_port": 8001}, "one port for several services"),
        ({"private_key": Path("key.pem")}, "without a certificate"),
        ({"token": ""}, "the token for control routes is empty"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, told):
    with pytest.raises(OptionError, match=told):
        Settings(**{"packages": PACKAGES, **options})


@pytest.mark.parametrize(("name", "value"), [("body_bytes", 0), ("idle_s", -1.0), ("header_s", float("inf"))])
def test_a_limit_is_a_number_above_0(name, value):
    with pytest.raises(OptionError, match=f"limit {name} is"):
        Limits(**{name: value})


def test_several_ports_may_be_left_to_the_system():
    assert Settings(PACKAGES, http_port=0, grpc_port=0, metrics_port=None).http_port == 0


def test_every_server_makes_a_token_of_its_own_and_does_not_show_it():
    first, second = Settings(PACKAGES), Settings(PACKAGES)
    assert first.token != second.token
    assert first.token not in repr(first)


def test_a_certificate_that_is_not_there_is_told():
    with pytest.raises(OptionError, match=r"nowhere\.pem cannot be used"):
        tls_context(Path("nowhere.pem"), None)
