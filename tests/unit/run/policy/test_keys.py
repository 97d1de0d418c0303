from __future__ import annotations

import json
from pathlib import Path

from sanderling.run.policy.document import Policy, parse_policy, policy_schema
from sanderling.run.policy.keys import example, keys, table
from tests.schema import violations

DOCS = Path(__file__).parents[4] / "docs"


def test_every_key_is_explained_in_words_that_name_keys_as_files_do():
    assert len(keys()) == 46
    for key in keys():
        assert key.meaning.endswith(".")
        assert "_" not in key.meaning


def test_page_has_the_table_of_the_code():
    assert table() in (DOCS / "policy.md").read_text(encoding="utf-8")


def test_page_begins_with_the_articles_policy():
    page = (DOCS / "policy.md").read_text(encoding="utf-8")
    block = page.split("```json\n")[1].split("```")[0]
    article = Path(__file__).parents[3] / "data" / "inference-policy.json"
    assert json.loads(block) == json.loads(article.read_text(encoding="utf-8"))


def test_example_is_a_policy_that_writes_out_every_key():
    content = example()
    policy = parse_policy(json.dumps(content))
    assert violations(content, policy_schema()) == []
    written = set(policy.model_dump(by_alias=True))
    assert written == content.keys() - {"$comment"}
    thresholds = policy.fallback_thresholds
    assert policy == Policy(device_priorities=("npu", "gpu", "cpu"), fallback_thresholds=thresholds)
    assert thresholds["npu"].cooldown_temp == 65
