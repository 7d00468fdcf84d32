"""Texts that tokenizers get wrong, and pieces to draw more of them from."""

from __future__ import annotations

from hypothesis import strategies as st

HOSTILE = [
    "",
    " ",
    "\n",
    " lead  two\n\n\nthree   \n trail \t",
    "\u2581\u2585\t\0 \u2581word",
    "<|endoftext|> a <|pad|><|endoftext|><unk><0x41><0x0A>",
    "'ll 'S .\x1c\x1d \x85\xa0 \u2028x",
    "e\u0301 नमस्ते 한국어 ไทย 👩‍👩‍👧 \U0010ffff \ufeff",
    "123456 3.14 a1b2",
    "a" * 200 + " " * 100 + "!" * 100 + "\r\n" * 50,
]
PIECES = [
    "a",
    "b1",
    "'s",
    ".",
    ",\n",
    " ",
    "  ",
    "\n",
    "\r",
    "\t",
    "\x1c",
    "\x85",
    "\xa0",
    "\u2028",
    "é",
    "\u0301",
    "日",
    "²",
    "_",
    "<|pad|>",
]
any_text = st.one_of(
    st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
)
