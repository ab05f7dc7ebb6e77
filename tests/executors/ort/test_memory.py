"""Planned memory is what the process really uses, on real models."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from lazybatch.executors.resident import resident_bytes
from lazybatch.partition.onnx.build import partition_onnx

ROOT = Path(__file__).resolve().parents[3]
CLASSIFIER = "ch_ppocr_mobile_v2.0_cls_infer.onnx"
RECOGNISER = "ch_PP-OCRv4_rec_infer.onnx"


@pytest.mark.skipif(resident_bytes() is None, reason="this system does not report resident memory")
@pytest.mark.parametrize(
    ("file", "shape", "max_batch_size"),
    [
        pytest.param(CLASSIFIER, (3, 48, 192), 32, id="classifier"),
        pytest.param(RECOGNISER, (3, 48, 320), 8, id="recogniser", marks=pytest.mark.slow),
    ],
)
def test_planned_memory_is_what_is_used(tmp_path: Path, file: str, shape: tuple[int, ...], max_batch_size: int) -> None:
    """Within 20 % of what a fresh process grows by under load, with two sub-batches in flight."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        pytest.skip("rapidocr-onnxruntime is not installed")
    partition_onnx(Path(spec.origin).parent / "models" / file, tmp_path)
    command = [sys.executable, "-m", "tests.executors.ort.memory_use", str(tmp_path), str(max_batch_size)]
    done = subprocess.run(
        [*command, *map(str, shape)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["sets"] == 2
    assert 0.8 <= figures["planned"] / figures["grown"] <= 1.2, figures
