"""A research template for Transformer encoders on PyTorch Lightning."""

__version__ = "0.1.0"
