from __future__ import annotations

import io
import json

from sanderling.serve.log import Log


def lines(as_json: bool) -> list[str]:
    stream = io.StringIO()
    log = Log(as_json=as_json, stream=stream)
    log.info("started", "it\nruns", port=1)
    log.warning("odd", "hm")
    try:
        raise ValueError("no")
    except ValueError as error:
        log.failure("fault", error, model="tiny")
    return stream.getvalue().splitlines()


def test_json_lines_are_objects_that_say_what_happened():
    first, second, third = map(json.loads, lines(as_json=True))
    assert (first["level"], first["event"], first["message"], first["port"]) == ("info", "started", "it runs", 1)
    assert (second["level"], second["message"]) == ("warning", "hm")
    assert (third["level"], third["message"], third["model"]) == ("error", "ValueError: no", "tiny")
    assert "test_log.py" in third["traceback"]


def test_text_lines_are_short_and_a_fault_says_where():
    first, second, third, *rest = lines(as_json=False)
    assert first.endswith("Z it runs")
    assert second.endswith("warning: hm")
    assert third.endswith("error: ValueError: no")
    assert rest[-1] == "ValueError: no"


def test_a_stream_that_is_closed_does_no_harm():
    stream = io.StringIO()
    stream.close()
    Log(stream=stream).info("started", "it runs")
