"""The code blocks of the README and of two pages are run, and they print what the page says."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/runtime.md", "docs/learning.md")
TIMEOUT_S = 300
_MARK = re.compile(r"^<!-- test(?P<output>: output)? -->$")
_FENCE = re.compile(r"^```(?P<language>\w*)\s*$")
_RUN = {
    "python": [sys.executable],
    "bash": ["bash", "-euo", "pipefail"],
    "sh": ["sh", "-eu"],
}


@dataclass(frozen=True)
class Block:
    """A fenced block to run, the line of its fence, and what it must print if that is said."""

    line: int
    language: str
    text: str
    expected: str | None = None


def marked_blocks(document):
    """Blocks to run, in order; a ``text`` block marked as output belongs to the block before it."""
    lines = document.splitlines()
    found = []
    for index, line in enumerate(lines):
        mark = _MARK.match(line.strip())
        if mark is None:
            continue
        block = _fenced(lines, index + 1)
        where = f"line {block.line + 1}"
        if mark["output"]:
            assert block.language == "text", f"{where}: expected ```text, got ```{block.language}"
            assert found, f"{where}: no block before it is run"
            assert found[-1].expected is None, f"{where}: the block before it has its output already"
            found[-1] = replace(found[-1], expected=block.text)
        else:
            assert block.language in _RUN, f"{where}: nothing runs ```{block.language}"
            found.append(block)
    return found


def matches(expected, actual):
    """Whether ``actual`` is ``expected`` where ``…`` stands for anything; blanks at line ends do not count."""
    pieces = (re.escape(piece) for piece in _trimmed(expected).split("…"))
    return re.fullmatch(".*".join(pieces), _trimmed(actual), re.DOTALL) is not None


def _trimmed(text):
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def _fenced(lines, index):
    opened = _FENCE.match(lines[index]) if index < len(lines) else None
    assert opened is not None, f"line {index + 1}: expected a fence such as ```bash directly after the mark"
    end = next((at for at in range(index + 1, len(lines)) if lines[at].strip() == "```"), None)
    assert end is not None, f"line {index + 1}: the fence is never closed"
    return Block(index, opened["language"], "\n".join(lines[index + 1 : end]) + "\n")


def run_block(block, folder):
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["SANDERLING_CACHE"] = str(folder / ".cache")
    script = folder / f".block-{block.line}"
    script.write_text(block.text, encoding="utf-8")
    return subprocess.run(
        [*_RUN[block.language], str(script)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_a_page_run_and_print_what_it_says(page, tmp_path):
    blocks = marked_blocks((ROOT / page).read_text(encoding="utf-8"))
    assert blocks, f"{page} marks no block with <!-- test --> or <!-- test: output -->"

    for block in blocks:
        done = run_block(block, tmp_path)
        where = f"{page}, line {block.line + 1}"
        assert done.returncode == 0, f"{where} exits with {done.returncode}:\n{done.stderr}"
        if block.expected is not None:
            assert matches(block.expected, done.stdout), f"{where} prints:\n{done.stdout}\nbut says:\n{block.expected}"


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("same\n", "same\n"),
        ("took … ms\n", "took 12.3 ms\n"),
        ("took … ms\n", "took  ms"),
        ("first\n…\nlast\n", "first\n1\n2\nlast\n"),
        ("a.b (c) [d] * …", "a.b (c) [d] * e"),
        ("no blanks\nat the end\n", "no blanks   \nat the end \n\n"),
        ("…", ""),
    ],
)
def test_matcher_takes_what_the_text_allows(expected, actual):
    assert matches(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("same\n", "other\n"),
        ("took … ms\n", "took 12.3 s\n"),
        ("first\n…\nlast\n", "first\nlast\nmore\n"),
        ("a.b", "axb"),
        ("one\n", "one\ntwo\n"),
        ("one\ntwo\n", "one\n"),
        ("  indented", "indented"),
        ("", "something"),
    ],
)
def test_matcher_refuses_what_the_text_does_not_say(expected, actual):
    assert not matches(expected, actual)


def test_only_marked_blocks_are_found_in_order_with_their_output():
    document = """# Title
```bash
not run
```
<!-- test -->
```python
print(1)
```
Words.
<!-- test -->
```bash
echo 2
```
It prints:

<!-- test: output -->
```text
2
```
```text
not the output of a marked block
```
"""

    assert marked_blocks(document) == [
        Block(5, "python", "print(1)\n"),
        Block(10, "bash", "echo 2\n", "2\n"),
    ]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("<!-- test -->\n\n```bash\necho\n```\n", "line 2: expected a fence"),
        ("<!-- test -->\n```bash\necho\n", "line 2: the fence is never closed"),
        ("<!-- test -->\n```rust\nfn\n```\n", "line 2: nothing runs ```rust"),
        ("<!-- test: output -->\n```text\nwords\n```\n", "line 2: no block before it is run"),
        ("<!-- test: output -->\n```bash\necho\n```\n", "line 2: expected ```text, got ```bash"),
        (
            "<!-- test -->\n```sh\necho\n```\n" + 2 * "<!-- test: output -->\n```text\n\n```\n",
            "line 10: the block before it has its output already",
        ),
    ],
)
def test_marks_that_cannot_be_followed_are_errors(document, message):
    with pytest.raises(AssertionError, match=re.escape(message)):
        marked_blocks(document)


def test_blocks_run_in_one_folder_with_the_command_on_the_path(tmp_path):
    blocks = marked_blocks(
        "<!-- test -->\n```bash\nsanderling --version > version.txt\n```\n"
        "<!-- test -->\n```python\nprint(open('version.txt').read(), end='')\n```\n"
        "<!-- test: output -->\n```text\nsanderling …\n```\n"
    )

    results = [run_block(block, tmp_path) for block in blocks]

    assert [done.returncode for done in results] == [0, 0], [done.stderr for done in results]
    assert matches(blocks[1].expected, results[1].stdout)


def test_block_stops_at_its_first_failing_command(tmp_path):
    done = run_block(Block(0, "bash", "false\necho went on\n"), tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
