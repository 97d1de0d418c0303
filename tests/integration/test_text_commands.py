"""`sanderling generate` and `sanderling chat` with a small language model, as users start them."""

from __future__ import annotations

import json
import os
import pty
import subprocess

import pytest

from tests.integration.conftest import COMMAND, TIMEOUT_S
from tests.tiny_text import CONTEXT


def piped(environment, data: bytes, *arguments):
    """A command that reads from a pipe."""
    return subprocess.run(
        [str(COMMAND), *map(str, arguments)], input=data, capture_output=True, env=environment, timeout=TIMEOUT_S
    )


def test_generate_prints_text_and_json_and_pieces_alike(sanderling, chat_package):
    asked = ("generate", chat_package, "--prompt", "the quick", "--max-tokens", 12)
    plain = sanderling(*asked)
    assert plain.code == 0, plain.stderr
    answer = sanderling(*asked, "--json").answer
    assert answer["text"] + "\n" == plain.stdout
    assert (answer["tokens"], answer["finish"], answer["cached_tokens"]) == (12, "length", 0)
    assert sanderling(*asked, "--stream").stdout == plain.stdout
    *pieces, whole = map(json.loads, sanderling(*asked, "--stream", "--json").stdout.splitlines())
    assert "".join(piece["piece"] for piece in pieces) == whole["text"] == answer["text"]


def test_generate_says_when_there_is_nothing_to_go_on_with(sanderling, chat_package):
    asked = ("generate", chat_package, "--prompt", "the quick", "--max-tokens", 12)
    first = sanderling(*asked).stdout[0]
    done = sanderling(*asked, "--stop", first)
    assert (done.code, done.stdout) == (0, "\n")
    assert done.stderr == "the text ended where it was to begin; to ask a question, use sanderling chat\n"


def test_generate_reads_a_prompt_from_a_pipe(environment, chat_package):
    done = piped(environment, b"the quick", "generate", chat_package, "--max-tokens", 12, "--json")
    assert json.loads(done.stdout)["prompt_tokens"] == 3


def test_generate_keeps_a_schema_and_a_seed(sanderling, chat_package, work):
    schema = work / "schema.json"
    schema.write_text('{"type": "object", "properties": {}, "additionalProperties": false}')
    asked = ("generate", chat_package, "--prompt", "a", "--temperature", 1, "--seed", 3)
    assert json.loads(sanderling(*asked, "--schema", schema).stdout) == {}
    assert sanderling(*asked, "--max-tokens", 9).stdout == sanderling(*asked, "--max-tokens", 9).stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--prompt", ""), "the prompt is empty"),
        (("--prompt", "the " * CONTEXT), f"prompt and answer together have {CONTEXT}"),
        (("--prompt", b"\xff".decode("utf-8", "surrogateescape")), "not valid Unicode"),
        (("--prompt", "a", "--stop", ""), "stop string is empty"),
        (("--prompt", "a", "--top-p", "0"), "top_p is 0.0: expected above 0"),
        (("--prompt", "a", "--variant", "int2"), "has no variant 'int2': available are fp32"),
        (("--prompt", "a", "--schema", "nowhere.json"), "nowhere.json"),
    ],
)
def test_what_cannot_be_generated_is_one_clear_line(sanderling, chat_package, arguments, told):
    done = sanderling("generate", chat_package, *arguments)
    assert done.code == 2
    assert told in done.error


def test_generate_refuses_a_pipe_that_is_no_text(environment, chat_package):
    done = piped(environment, b"ab\xff", "generate", chat_package)
    assert done.returncode == 2
    assert b"stdin is no valid UTF-8 at byte 2" in done.stderr


def test_text_commands_refuse_other_packages_and_other_commands_refuse_text(sanderling, chat_package, package):
    assert "generates no text" in sanderling("generate", package, "--prompt", "a").error
    assert "is a language model: use sanderling chat" in sanderling("run", chat_package, "x.npz").error


def test_chat_answers_each_line_of_a_pipe(environment, chat_package):
    said = b"hello\n\nhow are you?\n/forget\nhello\n/exit\nnever said\n"
    done = piped(environment, said, "chat", chat_package, "--max-tokens", 8, "--json")
    assert done.returncode == 0, done.stderr
    answers = list(map(json.loads, done.stdout.splitlines()))
    assert [answer["user"] for answer in answers] == ["hello", "how are you?", "hello"]
    assert answers[0]["assistant"] == answers[2]["assistant"]
    plain = piped(environment, said, "chat", chat_package, "--max-tokens", 8)
    assert plain.stdout.decode() == "".join(answer["assistant"] + "\n" for answer in answers)
    assert plain.stderr == b""


def test_chat_at_a_terminal_asks_and_survives_a_conversation_that_is_too_long(environment, chat_package):
    ours, theirs = pty.openpty()
    command = [str(COMMAND), "chat", str(chat_package), "--max-tokens", "4"]
    with subprocess.Popen(
        command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        os.close(theirs)
        for line in ("hello", "the " * CONTEXT, "/exit"):
            os.write(ours, f"{line}\n".encode())
        out, errors = process.communicate(timeout=TIMEOUT_S)
        os.close(ours)
    assert process.returncode == 0
    assert errors.startswith(b"> ")
    assert b"begin anew with /forget" in errors
    assert out.decode().count("\n") >= 1


@pytest.mark.parametrize(("engine", "missing"), [("genai", "onnxruntime_genai"), ("onnxruntime", "tokenizers")])
def test_what_an_engine_misses_is_named(sanderling, chat_package, engine, missing):
    done = sanderling("generate", chat_package, "--prompt", "a", "--engine", engine, without=[missing])
    assert done.code == 3
    assert "pip install 'sanderling[text]'" in done.error


def test_smollm2_answers_in_a_conversation(environment, smollm2_package):
    said = b"What is the capital of France?\nAnd of Italy?\n"
    done = piped(environment, said, "chat", smollm2_package, "--max-tokens", 24)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines()[0] == "The capital of France is Paris."
    assert "Rome" in done.stdout.decode().splitlines()[1]
