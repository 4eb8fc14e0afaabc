"""Transformer encoders in plain torch: no Lightning, no configuration objects; they script, export and compile as is.

Tensors carry their shape in their name, as a suffix of one letter a dimension:

    B batch       T tokens (queries)    S tokens (keys, values)    D d_model
    H heads       K head size           F feed-forward size        V vocabulary    C classes

Masks are boolean, True = real token, and are called `padding_mask`.
"""

from project.nn.attention import MultiHeadAttention
from project.nn.classifier import SequenceClassifier
from project.nn.dropout import Dropout
from project.nn.encoder import Encoder, EncoderLayer
from project.nn.ensemble import Ensemble, members_of
from project.nn.feed_forward import FeedForward
from project.nn.heads import ClassificationHead, Pooling
from project.nn.init import xavier_init
from project.nn.masked_lm import MaskedLanguageModel
from project.nn.position import LearnedPosition, RotaryPosition, SinusoidalPosition

__all__ = [
    "ClassificationHead",
    "Dropout",
    "Encoder",
    "EncoderLayer",
    "Ensemble",
    "FeedForward",
    "LearnedPosition",
    "MaskedLanguageModel",
    "MultiHeadAttention",
    "Pooling",
    "RotaryPosition",
    "SequenceClassifier",
    "SinusoidalPosition",
    "members_of",
    "xavier_init",
]
