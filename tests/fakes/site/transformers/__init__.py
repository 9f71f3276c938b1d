"""As much of transformers as a chat template needs: a token a character, after a beginning-of-text token."""

from __future__ import annotations

from typing import Any

BEGIN = "^"


class AutoTokenizer:
    bos_token = BEGIN
    chat_template = "<user>...</user><assistant>...</assistant>"

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> AutoTokenizer:
        return cls()

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        said = "".join(f"<{m['role']}>{m['content']}</{m['role']}>" for m in messages)
        return f"{BEGIN}{said}<assistant>"

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in (BEGIN if add_special_tokens else "") + text]}
