"""Chat templates in the styles that are published."""

from __future__ import annotations

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n'"
    " + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CHATML_MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""The same text as `CHATML`."""
THOUGHTS = CHATML.replace(
    "message['content']",
    "(message['content'] if loop.last else message['content'].split('</think>')[-1])",
).replace("assistant\\n'", "assistant\\n<think>\\n'")
"""Drops the thoughts of earlier answers, and begins an answer with them."""
INSTRUCTIONS = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}[INST] {{ message['content'] | trim }} [/INST]"
    "{% elif message['role'] == 'assistant' %} {{ message['content'] | trim }}{{ eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant speak') }}{% endif %}{% endfor %}"
)
TIGHT = (
    "{% for message in messages %}<|{{ message['content'] }}|>"
    "{% generation %}<{% endgeneration %}{% endfor %}"
)
"""Puts text where a control token would be complete with it."""
