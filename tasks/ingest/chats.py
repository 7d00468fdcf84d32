"""Reads the turns of a chat from a record, in the forms that are common.

| form | keys |
|---|---|
| messages | a list of `role` and `content`; content is text, or a list of parts with text |
| ShareGPT | `conversations`: a list of `from` and `value` |
| Alpaca | `instruction`, `input` and `output` |
| pair | `chosen` and `rejected`, lists of messages or texts, after a `prompt` or the same turns |

A `system` text beside them begins the chat where it has no system turn. Names of roles are those of
`ROLES`. What every turn needs is repaired as texts are. Dropped, beside EMPTY: BLANK_TURN (system
turns without text are left out), NO_PROMPT (it does not begin with the user), NO_ANSWER (nothing of
the assistant), TOOL_CALLS (a turn calls tools, whatever it says), NOT_TEXT (pictures and sounds).
Of pairs also UNPAIRED (they differ in more than one answer of the assistant) and SAME_ANSWERS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tasks.corpus.turns import ASSISTANT, CHOSEN, PAIR, REJECTED, join_turns
from tasks.corpus.visible import shows
from tasks.readers import json_type

LISTS = ("messages", "conversations")
OWN_LISTS = (*LISTS, *PAIR)
"""Columns whose lists of objects are turns of one record."""
ALPACA = ("instruction", "input", "output")
CALLS = ("tool_calls", "function_call")
USER, SYSTEM, TOOL = "user", "system", "tool"
ROLES = {
    **dict.fromkeys(("user", "human", "prompter"), USER),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "model", "bot"), ASSISTANT),
    **dict.fromkeys(("system", "developer"), SYSTEM),
    **dict.fromkeys(("tool", "function", "observation"), TOOL),
}


class NotAChat(ValueError):
    """A record that is none of the forms; the message says why."""


class Chat(NamedTuple):
    """`text` with the spans of its turns, and what was repaired."""

    text: str
    turns: list[dict[str, Any]]
    repairs: tuple[str, ...]


class _Dropped(Exception):
    """The reason is the first argument."""


def read_chat(
    values: dict[str, Any], column: str, repair: Callable[[str], tuple[str, tuple[str, ...]]]
) -> Chat | str:
    """The chat of a record, or why it is dropped. Takes its columns out of `values`.

    column: where a list of turns is looked for first. Raises NotAChat.
    """
    try:
        turns = _pair(values) if all(name in values for name in PAIR) else _turns(values, column)
    except _Dropped as dropped:
        return str(dropped.args[0])
    system = values.get("system")
    if isinstance(system, str) and turns and turns[0][0] != SYSTEM:
        turns.insert(0, (SYSTEM, values.pop("system")))
    found, repairs = [], set()
    for role, content in turns:
        encoded = content.encode("utf-8", "replace")
        whole = encoded.decode()
        text, own = repair(whole)
        # Before the line end that follows a turn it would make one of two characters.
        bare = text.rstrip("\r")
        repairs |= {*own, *["LONE_SURROGATE"][: whole != content], *["CRLF"][: bare != text]}
        if shows(bare):
            found.append((role, bare))
        elif role != SYSTEM:
            return "BLANK_TURN" if any(shows(other) for _, other in turns) else "EMPTY"
    roles = [role for role, _ in found if role != SYSTEM]
    if not roles:
        return "EMPTY"
    if roles[0] != USER:
        return "NO_PROMPT"
    if found[-1][0] == REJECTED and found[-2][1] == found[-1][1]:
        return "SAME_ANSWERS"
    answered = ASSISTANT in roles or CHOSEN in roles
    return Chat(*join_turns(found), tuple(sorted(repairs))) if answered else "NO_ANSWER"


def _turns(values: dict[str, Any], column: str) -> list[tuple[str, str]]:
    for name in (column, *LISTS):
        if isinstance(values.get(name), list):
            return [_turn(turn, number) for number, turn in enumerate(values.pop(name))]
    if "instruction" not in values or "output" not in values:
        raise NotAChat(
            f"wrong type: no list of turns in {', '.join(dict.fromkeys((column, *LISTS)))}, and no"
            " instruction with an output"
        )
    parts = [values.pop(name, None) for name in ALPACA]
    for name, part in zip(ALPACA, parts, strict=True):
        if not isinstance(part, str) and not (part is None and name == "input"):
            raise NotAChat(f"wrong type: column {name} is {json_type(part)}, not text")
    instruction, more, output = (part or "" for part in parts)
    return [(USER, f"{instruction}\n\n{more}" if shows(more) else instruction), (ASSISTANT, output)]


def _pair(values: dict[str, Any]) -> list[tuple[str, str]]:
    """The turns before both answers, then the answers."""
    prompt, *answers = values.pop("prompt", None), *(values.pop(name) for name in PAIR)
    before, *branches = (
        _listed(each, name)
        for each, name in zip((prompt, *answers), ("prompt", *PAIR), strict=True)
    )
    # A list of messages holds the prompt itself unless it begins with the answer.
    if isinstance(answers[0], list) and branches[0][:1] and branches[0][0][0] != ASSISTANT:
        before = []
    same = 0
    while all(same < len(branch) - 1 for branch in branches) and (
        branches[0][same] == branches[1][same]
    ):
        same += 1
    ends = [branch[same:] for branch in branches]
    if any(len(end) != 1 or end[0][0] != ASSISTANT for end in ends):
        raise _Dropped("UNPAIRED")
    (chosen,), (rejected,) = ends
    return [*before, *branches[0][:same], (CHOSEN, chosen[1]), (REJECTED, rejected[1])]


def _listed(told: Any, name: str) -> list[tuple[str, str]]:
    """Turns of a list, or one of a text: the assistant's, or the user's where it is the prompt."""
    if isinstance(told, list):
        return [_turn(turn, number) for number, turn in enumerate(told)]
    if isinstance(told, str):
        return [(USER if name == "prompt" else ASSISTANT, told)]
    if told is None and name == "prompt":
        return []
    raise NotAChat(f"wrong type: column {name} is {json_type(told)}, not text or a list of turns")


def _turn(turn: Any, number: int) -> tuple[str, str]:
    if not isinstance(turn, Mapping):
        raise NotAChat(f"wrong type: turn {number} is {json_type(turn)}, not an object")
    named = turn.get("role", turn.get("from"))
    role = ROLES.get(named.lower()) if isinstance(named, str) else None
    if role is None:
        raise NotAChat(f"unknown role: turn {number} has none of {', '.join(ROLES)}")
    content = turn.get("content", turn.get("value"))
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) < len(parts):
            raise _Dropped("NOT_TEXT")
        content = "".join(texts)
    # A turn without its calls would teach answers to what nobody asked.
    if any(turn.get(name) for name in CALLS):
        raise _Dropped("TOOL_CALLS")
    if not isinstance(content, str):
        raise NotAChat(f"wrong type: turn {number} is {json_type(content)}, not text")
    return role, content
