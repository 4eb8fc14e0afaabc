"""From a finished run to a verified bundle: `runs/<name>/<id>/export/`.

    artifacts.py   what can be made, by name, and the file that makes and reads it
    source.py      the checkpoint as a fresh network in float32, and its one torch.export
    torchscript.py  onnx.py  pt2.py  aoti.py   one file a format: how to write it, how to read it
    quantize.py    int8, one function a method
    process.py     an artifact in a process of its own
    parity.py      what an artifact must prove there before it is published
    bundle.py      the whole: make, prove, publish, manifest and table
    command.py     python -m project export
    predictor.py   python -m project predict --bundle: onnxruntime and the tokenizer, nothing else

artifacts, interface, process, predictor and, to read, onnx import no torch.
"""
