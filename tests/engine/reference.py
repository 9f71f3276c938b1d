"""Greedy decoding with transformers, run by the engine's Python: an answer that owes nothing to SGLang or to us.

``reference.py MODEL OUTPUT_TOKENS < {"id": "prompt"}`` prints ``{"id": [token ids]}``.
"""

from __future__ import annotations

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    """Decode every prompt from standard input."""
    model_path, output_tokens = sys.argv[1], int(sys.argv[2])
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    answers = {}
    for name, text in json.load(sys.stdin).items():
        ids = torch.tensor([tokenizer.encode(text)])
        with torch.no_grad():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=output_tokens,
                min_new_tokens=output_tokens,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
            )
        answers[name] = out[0, ids.shape[1] :].tolist()
    print(json.dumps(answers))


main()
