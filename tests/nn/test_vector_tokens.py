"""Tokens that are vectors: a linear map in place of the embedding, everything else the same."""

import pytest
import torch

from project.nn import Encoder, SequenceClassifier


def test_a_linear_map_takes_the_embeddings_place() -> None:
    model = SequenceClassifier(Encoder(16, 1, 2), None, 3, num_features=5).eval()
    vectors, mask = torch.randn(4, 6, 5), torch.ones(4, 6, dtype=torch.bool)
    x = vectors @ model.embedding.weight.T + model.embedding.bias
    torch.testing.assert_close(model(vectors, mask), model.head(model.pooling(model.encoder(x, mask), mask)))


def test_one_hot_vectors_give_what_ids_give() -> None:
    torch.manual_seed(0)
    of_ids = SequenceClassifier(Encoder(16, 1, 2), 7, 3).eval()
    of_vectors = SequenceClassifier(Encoder(16, 1, 2), None, 3, num_features=7).eval()
    state = of_ids.state_dict()
    state["embedding.weight"] = state["embedding.weight"].T * 16**0.5
    of_vectors.load_state_dict(state | {"embedding.bias": torch.zeros(16)})
    ids, mask = torch.randint(7, (4, 6)), torch.ones(4, 6, dtype=torch.bool)
    one_hot = torch.nn.functional.one_hot(ids, 7).float()
    torch.testing.assert_close(of_vectors(one_hot, mask), of_ids(ids, mask))


def test_it_scripts() -> None:
    model = SequenceClassifier(Encoder(16, 1, 2), None, 3, num_features=5).eval()
    inputs = torch.randn(4, 6, 5), torch.ones(4, 6, dtype=torch.bool)
    torch.testing.assert_close(torch.jit.script(model)(*inputs), model(*inputs))


@pytest.mark.parametrize("sizes", [(None, None), (7, 5)])
def test_ids_or_vectors_not_both(sizes: tuple[int | None, int | None]) -> None:
    with pytest.raises(ValueError, match="give one of vocab_size and num_features"):
        SequenceClassifier(Encoder(16, 1, 2), sizes[0], 3, num_features=sizes[1])
