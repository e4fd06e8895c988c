# Written by tests/data/generate/whole_models.py: as much of the published class as llama.cpp's converter asks for.
import base64

import tiktoken
from transformers import PreTrainedTokenizer


class TikTokenTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "tiktoken.model"}
    PAT_STR = r"""[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""

    def __init__(self, vocab_file, added_tokens_decoder=None, **kwargs):
        lines = [line.split() for line in open(vocab_file, "rb")]
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        base = len(ranks)
        named = {int(id): getattr(token, "content", token) for id, token in (added_tokens_decoder or {}).items()}
        self.special_tokens = {named.get(id, f"<|reserved_token_{id}|>"): id for id in range(base, base + 256)}
        self.model = tiktoken.Encoding("TikTokenTokenizer", pat_str=self.PAT_STR, mergeable_ranks=ranks, special_tokens=self.special_tokens)
        self.mergeable_ranks = ranks
        super().__init__(**kwargs)

    @property
    def vocab_size(self):
        return self.model.n_vocab

    def get_vocab(self):
        return {token.decode("latin-1"): rank for token, rank in self.mergeable_ranks.items()} | self.special_tokens

    def _tokenize(self, text):
        return self.model.encode(text, allowed_special="all")

    def _convert_token_to_id(self, token):
        return token if isinstance(token, int) else self.get_vocab().get(token)

    def _convert_id_to_token(self, index):
        return self.model.decode_single_token_bytes(index).decode("latin-1")
