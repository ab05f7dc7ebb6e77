"""Where the demo's trained models are: files inside an installed package, whose code is never imported.

Owns: finding them, and the recogniser's alphabet, which its file carries.
Must not know: how models are served.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from lazybatch.errors import ModelError

PACKAGE = "rapidocr_onnxruntime"
FILES = {
    "direction": "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "reader": "models/ch_PP-OCRv4_rec_infer.onnx",
    "detector": "models/ch_PP-OCRv4_det_infer.onnx",
}


def find(name: str) -> Path:
    """The file of "direction", "reader" or "detector". Raises `ModelError` saying what to install."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        path = Path(folder) / FILES[name]
        if path.exists():
            return path
    raise ModelError(
        f"the {name} model lies in the package rapidocr-onnxruntime, which is not installed; "
        "run `pip install --no-deps rapidocr-onnxruntime==1.4.4` (only its model files are used)"
    )


def alphabet(path: Path) -> list[str]:
    """The characters by output index, from the model file: blank first, then the list, then the space."""
    from lazybatch.executors.ort.session import open_session

    characters = open_session(path, optimise=False).get_modelmeta().custom_metadata_map["character"].splitlines()
    return ["", *characters, " "]
