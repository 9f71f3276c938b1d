"""Make the tiny models of the CPU engine from a seed: a script, run with the engine's Python.

::

    python tiny_models.py --out DIR [--seed N] [NAME ...]    makes DIR/NAME/, prints {"NAME": "/abs/path", ...}
    python tiny_models.py --print-key [--seed N]             prints what tells one content from another

``target``
    A Llama of seven layers (EAGLE3 reads three different ones; with fewer, two of them are the same). Its
    weights are random, its greedy output differs by prompt, and it only ever writes printable ASCII.
``standalone-draft``
    The target with noise on every weight: right often enough, and wrong often enough, for an accept length
    between 1 and the number of steps plus 1 that varies by prompt.
``eagle3-draft``
    A random EAGLE3 head whose draft vocabulary maps to tokens the target never writes: nothing is accepted,
    and the accept length is exactly 1.
``eagle-draft``
    A random EAGLE head. It shares the target's output head, so a draft token is right by chance, once in a few
    hundred.

A seed gives the same bytes everywhere: weights are integers from torch's generator, scaled by a power of two.
A model appears under its name when it is whole; of two processes that make it at once, one wins.
"""

# ruff: noqa: PLC0415  # --print-key works without torch
from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import torch

HIDDEN: Final = 128
HEADS: Final = 4
KV_HEADS: Final = 2
HEAD_WIDTH: Final = HIDDEN // HEADS
MLP_WIDTH: Final = 256
LAYERS: Final = 7
VOCABULARY: Final = 512
CONTEXT_TOKENS: Final = 8192
#: Rotary pairs turn by ``ROPE_BASE ** (-pair / 16)`` radians a token. The pairs of LOCAL_PAIRS carry a constant
#: in every query and key of the target, so that they add ``LOCALITY * mean(cos(angle))`` to a score: a bell around
#: the token itself; through all layers, some twenty-five tokens are in sight. `make_target` says what it is good for.
ROPE_BASE: Final = 300.0
LOCAL_PAIRS: Final = range(4, 16)
LOCALITY: Final = 32.0
#: Dimension 0 of the target's residual stream: the same in every token and layer, and much of its norm.
CONSTANT: Final = 11.0
#: Standard deviations, in units of 1 / sqrt(fan-in), where they are not 1. Sharper attention makes the output vary
#: more by prompt, and makes rounding errors grow from layer to layer.
GAINS: Final = {"q_proj": 1.2, "k_proj": 1.2, "o_proj": 0.5, "down_proj": 0.4}
#: The same for the output head of the target: a distribution peaked enough that trees of draft tokens grow deep.
HEAD_GAIN: Final = 4.0
#: The noise of ``standalone-draft``: the standard deviation of each weight's relative error.
DRAFT_NOISE: Final = 0.03

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
SPECIAL_TOKENS: Final = (PAD, BOS, EOS)
#: No roles, and nothing after the last message: it would fill much of what the target has in sight.
CHAT_TEMPLATE: Final = "{% for message in messages %}{{ message['content'] + '\\n' }}{% endfor %}"
#: What the tokenizer's merges are learnt from. Bytes outside it are tokens of their own, so any text works.
CORPUS: Final = """
Speculative decoding lets a small draft propose several tokens and a large target verify them in one step.
When the draft is right the server commits many tokens for the price of one; when it is wrong, only the token
of the target is kept, and nothing is lost but time. How often the draft is right depends on the text: code and
tables repeat themselves, poems do not. A measurement therefore names its workload, the number of requests that
run at the same time, and the length of the output. Two runs are compared on one machine, in turn, with the same
prompts; a difference counts when it is larger than what two equal runs show.
The server reads its weights, fills the cache with keys and values, and answers when it is ready. Every step it
asks the draft for the next words, checks them together, moves what was accepted to its place and goes on with
the following token. What should we do with the other things? Please write a short story about the people who
would rather work there than anywhere else, because they could see the water from their windows.
def first(values): return values[0] if values else None
for index in range(10): print(index, index * 2, sep=", ")
"""


class Model(NamedTuple):
    """What a model's directory is made from."""

    config: dict[str, Any]
    weights: dict[str, torch.Tensor]


class Tokens(NamedTuple):
    """The tokenizer as its file's JSON, and which of its ids stand for printable ASCII text."""

    json: str
    printable: list[int]


def model_key(seed: int) -> str:
    """What tells the content of one set of models from another: this file and the seed, as 64 hex digits."""
    return hashlib.sha256(Path(__file__).read_bytes() + f"\nseed={seed}".encode()).hexdigest()


def make_tokens() -> Tokens:
    """Train the byte-level tokenizer of `VOCABULARY` ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=1,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS.splitlines(), trainer)
    size = tokenizer.get_vocab_size()
    if size != VOCABULARY:
        raise SystemExit(f"tiny_models.py: the tokenizer has {size} ids, not {VOCABULARY}: the corpus is too small")
    texts = [tokenizer.decode([number], skip_special_tokens=True) for number in range(VOCABULARY)]
    printable = [number for number, text in enumerate(texts) if text and text.isascii() and text.isprintable()]
    return Tokens(tokenizer.to_str(), printable)


def make_target(seed: int, tokens: Tokens) -> Model:
    """A random Llama that attends locally and writes printable tokens only.

    The output head has rows for printable tokens; every other logit is 0, and never the largest. Attention is
    local because SGLang's STANDALONE drafting shows the draft slightly other text than the target: never the
    first token of a prompt, and a foreign token where the prefix cache was hit by another prompt. A draft equal
    to the target is still exactly right when such a token is out of sight.
    """
    embedding = _uniform(seed, "embed_tokens", (VOCABULARY, HIDDEN), fan_in=1)
    embedding[:, 0] = CONSTANT
    head = _without_constant(_uniform(seed, "lm_head", (VOCABULARY, HIDDEN), gain=HEAD_GAIN))
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": _ones(HIDDEN),
        "lm_head.weight": _only_rows(head, tokens.printable),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        weights |= _layer(seed, prefix, qkv_inputs=HIDDEN)
        for part in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
            name = f"{prefix}{part}.weight"
            weights[name] = _without_constant(weights[name])
        for part in ("self_attn.o_proj", "mlp.down_proj"):
            weights[f"{prefix}{part}.weight"][0] = 0
        for part in ("self_attn.q_proj", "self_attn.k_proj"):
            _attend_locally(weights[f"{prefix}{part}.weight"])
    return Model(_config("LlamaForCausalLM", layers=LAYERS), weights)


def make_standalone_draft(seed: int, tokens: Tokens) -> Model:
    """The target, with noise on the weights of every matrix."""
    target = make_target(seed, tokens)
    noisy = {
        # Two roundings, never one: a fused multiply-add would give other bytes on another machine.
        name: weight * (_uniform(seed, f"noise/{name}", tuple(weight.shape), gain=DRAFT_NOISE, fan_in=1) + 1.0)
        for name, weight in target.weights.items()
        if weight.dim() == 2
    }
    return Model(target.config, target.weights | noisy)


def make_eagle3_draft(seed: int, tokens: Tokens) -> Model:
    """A random EAGLE3 head over the tokens the target never writes."""
    import torch

    printable = set(tokens.printable)
    never_written = [n for n in range(len(SPECIAL_TOKENS), VOCABULARY) if n not in printable]
    size = len(never_written)
    weights = {
        "fc.weight": _uniform(seed, "eagle3/fc", (HIDDEN, 3 * HIDDEN)),
        "norm.weight": _ones(HIDDEN),
        "lm_head.weight": _uniform(seed, "eagle3/lm_head", (size, HIDDEN)),
        # The format of EAGLE3 checkpoints: what to add to a draft id, and which target ids have one.
        "d2t": torch.tensor(never_written) - torch.arange(size),
        "t2d": torch.tensor([n in never_written for n in range(VOCABULARY)]),
        "midlayer.hidden_norm.weight": _ones(HIDDEN),
    }
    weights |= _layer(seed, "midlayer.", qkv_inputs=2 * HIDDEN, name="eagle3/")
    config = _config("LlamaForCausalLMEagle3", layers=1)
    return Model(config | {"draft_vocab_size": size, "target_hidden_size": HIDDEN}, weights)


def make_eagle_draft(seed: int, tokens: Tokens) -> Model:
    """A random EAGLE head; embedding and output head are the target's."""
    del tokens
    weights = {
        "fc.weight": _uniform(seed, "eagle/fc", (HIDDEN, 2 * HIDDEN)),
        "fc.bias": _ones(HIDDEN) * 0,
    }
    weights |= _layer(seed, "layers.0.", qkv_inputs=HIDDEN, name="eagle/")
    del weights["layers.0.input_layernorm.weight"]  # an EAGLE head has none
    return Model(_config("LlamaForCausalLMEagle", layers=1), weights)


MAKERS: Final[Mapping[str, Callable[[int, Tokens], Model]]] = {
    "target": make_target,
    "standalone-draft": make_standalone_draft,
    "eagle3-draft": make_eagle3_draft,
    "eagle-draft": make_eagle_draft,
}


def make_directory(name: str, *, out: Path, seed: int) -> Path:
    """Make ``out/name`` unless it is there; it is complete or absent at any time."""
    directory = out / name
    if directory.is_dir():
        return directory
    out.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=out))
    try:
        _write(unfinished, name, seed)
        unfinished.chmod(0o755)
        try:
            unfinished.rename(directory)
        except OSError:
            if not directory.is_dir():  # else another process was faster, with the same bytes
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return directory


def _write(directory: Path, name: str, seed: int) -> None:
    from safetensors.torch import save_file

    tokens = make_tokens()
    model = MAKERS[name](seed, tokens)
    weights = {key: weight.contiguous() for key, weight in model.weights.items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)
    (directory / "tokenizer.json").write_text(tokens.json, encoding="utf-8")
    _write_json(directory / "config.json", model.config)
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": PAD,
            "model_max_length": CONTEXT_TOKENS,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _write_json(
        directory / "generation_config.json",
        {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    )


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _config(architecture: str, *, layers: int) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": MLP_WIDTH,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_WIDTH,
        "hidden_act": "silu",
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": 1e-5,
        "rope_theta": ROPE_BASE,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }


def _layer(seed: int, prefix: str, *, qkv_inputs: int, name: str = "") -> dict[str, torch.Tensor]:
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_WIDTH, qkv_inputs),
        "self_attn.k_proj": (KV_HEADS * HEAD_WIDTH, qkv_inputs),
        "self_attn.v_proj": (KV_HEADS * HEAD_WIDTH, qkv_inputs),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_WIDTH),
        "mlp.gate_proj": (MLP_WIDTH, HIDDEN),
        "mlp.up_proj": (MLP_WIDTH, HIDDEN),
        "mlp.down_proj": (HIDDEN, MLP_WIDTH),
    }
    layer = {
        f"{prefix}{part}.weight": _uniform(
            seed, f"{name}{prefix}{part}", shape, gain=GAINS.get(part.rpartition(".")[2], 1.0)
        )
        for part, shape in shapes.items()
    }
    layer[f"{prefix}input_layernorm.weight"] = _ones(HIDDEN)
    layer[f"{prefix}post_attention_layernorm.weight"] = _ones(HIDDEN)
    return layer


def _uniform(
    seed: int, name: str, shape: tuple[int, ...], *, gain: float = 1.0, fan_in: int | None = None
) -> torch.Tensor:
    """Uniform weights with variance ``gain**2 / fan_in``; ``fan_in`` is the last dimension unless given.

    Every weight has a generator of its own, so that one model's change leaves the others alone.
    """
    import torch

    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))
    steps = torch.randint(-(2**15), 2**15 + 1, shape, generator=generator).to(torch.float32)
    half_width = gain * (3.0 / (shape[-1] if fan_in is None else fan_in)) ** 0.5
    return steps * (half_width / 2**15)


def _without_constant(weight: torch.Tensor) -> torch.Tensor:
    """Make a matrix that reads the normalised residual stream blind to its constant, and scale the rest back up."""
    scaled = weight * (1.0 + CONSTANT**2 / HIDDEN) ** 0.5
    scaled[:, 0] = 0
    return scaled


def _attend_locally(projection: torch.Tensor) -> None:
    """Let the rows of the local pairs of each head, queries or keys, read nothing but the constant."""
    normalised = CONSTANT / (1.0 + CONSTANT**2 / HIDDEN) ** 0.5
    amplitude = (LOCALITY / len(LOCAL_PAIRS) * HEAD_WIDTH**0.5) ** 0.5 / normalised
    for head in range(0, projection.shape[0], HEAD_WIDTH):
        for pair in LOCAL_PAIRS:
            projection[head + pair] = 0
            projection[head + pair + HEAD_WIDTH // 2] = 0
            projection[head + pair, 0] = amplitude


def _ones(size: int) -> torch.Tensor:
    import torch

    return torch.ones(size)


def _only_rows(weight: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    import torch

    kept = torch.zeros_like(weight)
    kept[list(rows)] = weight[list(rows)]
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; the exit code."""
    parser = argparse.ArgumentParser(prog="tiny_models.py", description="Make the CPU engine's tiny models.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MAKERS)}; default: all")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to make DIR/NAME")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--print-key", action="store_true", help="print the content's key, and make nothing")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in MAKERS]
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}; there are {', '.join(MAKERS)}")
    if options.print_key:
        print(model_key(options.seed))
        return 0
    if options.out is None:
        parser.error("--out DIR says where the models go")
    names = options.names or list(MAKERS)
    made = {name: str(make_directory(name, out=options.out.resolve(), seed=options.seed)) for name in names}
    print(json.dumps(made))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    sys.exit(main())
