"""Servers of the CPU engine: a tiny model with every way of drafting that SGLang has on a CPU."""

from __future__ import annotations

from pytest_specdec import ServerSpec

#: Draft tokens a step in the specs below that draft in a chain.
STEPS = 3
_CHAIN = f"--speculative-num-steps {STEPS} --speculative-eagle-topk 1 --speculative-num-draft-tokens {STEPS + 1}"

BASE = ServerSpec.tiny("tiny-base")
#: The draft is the target itself: every draft token is right.
STANDALONE = BASE.but(
    "tiny-standalone",
    f"--speculative-algorithm STANDALONE --speculative-draft-model-path tiny:target {_CHAIN}",
)
#: The draft is the target with noise, in a tree of drafts: it is right for a part of the tokens, varying by prompt.
STANDALONE_TREE = BASE.but(
    "tiny-standalone-tree",
    "--speculative-algorithm STANDALONE --speculative-draft-model-path tiny:standalone-draft"
    " --speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 6",
)
NGRAM = BASE.but("tiny-ngram", "--speculative-algorithm NGRAM --speculative-num-draft-tokens 8")
#: The drafts of these two are untrained: nothing is accepted, and that must be noticed.
EAGLE = BASE.but(
    "tiny-eagle", f"--speculative-algorithm EAGLE --speculative-draft-model-path tiny:eagle-draft {_CHAIN}"
)
EAGLE3 = BASE.but(
    "tiny-eagle3", f"--speculative-algorithm EAGLE3 --speculative-draft-model-path tiny:eagle3-draft {_CHAIN}"
)
#: A tree of drafts instead of a chain.
EAGLE3_TREE = EAGLE3.but("tiny-eagle3-tree", "--speculative-eagle-topk 2 --speculative-num-draft-tokens 6")
