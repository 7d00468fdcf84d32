"""Makes folders with tiny models of named entities: one that knows words by heart, and a random
one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LABELS = ("O", "B-PER", "I-PER", "B-ADDRESS", "I-ADDRESS", "B-DATE", "I-DATE", "B-ORG")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def save_tokenizer(folder: Path, words: Sequence[str]) -> int:
    """A WordPiece tokenizer of these words and pieces (##…); the size of its vocabulary."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import TemplateProcessing

    vocab = {word: number for number, word in enumerate(dict.fromkeys([*SPECIAL, *words]))}
    tokenizer = Tokenizer(WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(clean_text=False, strip_accents=False, lowercase=False)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(vocab)


def bert_config(vocab_size: int, labels: Sequence[str], **values: Any) -> Any:
    from transformers import BertConfig

    return BertConfig(
        vocab_size=vocab_size,
        intermediate_size=64,
        max_position_embeddings=64,
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
        **values,
    )


def write_word_model(
    folder: Path, words: Mapping[str, str], labels: Sequence[str] = LABELS
) -> Path:
    """A model that gives each token the label of its word in `words`, wherever it stands."""
    import torch
    from transformers import BertForTokenClassification

    size = save_tokenizer(folder, list(words))
    config = bert_config(size, labels, num_hidden_layers=1, hidden_size=16, num_attention_heads=2)
    model = BertForTokenClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.fill_(1)
        ids = {word: number for number, word in enumerate(dict.fromkeys([*SPECIAL, *words]))}
        embeddings = model.bert.embeddings.word_embeddings.weight
        embeddings[:, labels.index("O")] = 1
        for word, label in words.items():
            embeddings[ids[word]] = torch.eye(16)[labels.index(label)]
        model.classifier.weight.copy_(4 * torch.eye(16)[: len(labels)])
    model.save_pretrained(folder)
    return folder


def write_random_model(folder: Path, words: Sequence[str], seed: int = 0) -> Path:
    """A model of two layers with random weights, sure enough of itself to find things."""
    import torch
    from transformers import BertForTokenClassification

    size = save_tokenizer(folder, words)
    config = bert_config(size, LABELS, num_hidden_layers=2, hidden_size=32, num_attention_heads=4)
    torch.manual_seed(seed)
    model = BertForTokenClassification(config)
    with torch.no_grad():
        model.classifier.weight.mul_(60)
        for layer in model.bert.encoder.layer:
            for parameter in layer.parameters():
                parameter.mul_(8 if parameter.dim() == 2 else 1)
    model.save_pretrained(folder)
    return folder
