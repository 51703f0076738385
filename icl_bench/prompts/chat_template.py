"""A model's chat template: messages to text, like ``apply_chat_template`` of transformers.

Rendered here so that plans do not import transformers. The language is the same (Jinja in a
sandbox, with ``raise_exception``, ``strftime_now``, ``tojson`` and ``generation`` blocks), and a
differential test compares both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_bench.errors import UserError
from icl_bench.prompts.rendering import Message
from icl_bench.tasks.jinja import SECONDS, without_random
from icl_bench.tasks.time_limits import TookTooLongError, time_limit
from icl_bench.text_files import json_file
from icl_bench.wording import first_line

if TYPE_CHECKING:
    import jinja2

_FILE, _CONFIG = "chat_template.jinja", "tokenizer_config.json"
_CLOSED = {"<|START_THINKING|>": "<|END_THINKING|>"}
"""The text that closes a thought, by its opening mark, if it does not use a slash: Cohere's."""

_TAG = re.compile(
    rf"(?P<open>{'|'.join(map(re.escape, _CLOSED))}|"
    r"(?i:[<\[](?!end)[\w:-]*(?:think|thought|reason)[\w:-]*[>\]]))"
)
"""The beginning of a thought anywhere: ``<think>``, ``[THINK]``."""

_OPENED = re.compile(rf"{_TAG.pattern}\s*$")
"""The beginning of a thought at the end of a generation prompt."""

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class ChatTemplate:
    """A template with its arguments and the name of its model."""

    source: str
    """The template's source, in Jinja."""
    model_name: str
    """The model, for messages."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """``enable_thinking`` and similar arguments, and the special tokens by name."""
    day: str | None = None
    """The date that the template may write, such as ``2026-01-31``; None for today's."""
    closes_thoughts: bool = False
    """Whether a thought that the generation prompt begins is closed, so that an answer follows it."""
    option: str = "--chat"
    """The option that requests the template, for messages."""

    @classmethod
    def of_folder(
        cls,
        folder: Path,
        model_name: str,
        arguments: Mapping[str, Any],
        *,
        day: str | None = None,
        closes_thoughts: bool = False,
        option: str = "--chat",
    ) -> ChatTemplate:
        """Read the template from a tokenizer's folder.

        Raises ``UserError`` if there is none, or it cannot be read.
        """
        try:
            config = _read_config(folder / _CONFIG)
            source = _source(folder, config)
        except (OSError, ValueError) as error:
            raise UserError(f"model {model_name}: its chat template cannot be read ({first_line(error)})") from None
        if source is None:
            raise UserError(
                f"{option}: model {model_name} has no chat template; give an instruct model, or leave {option} out"
            )
        special = {name: _token_text(config[name]) for name in _SPECIAL if config.get(name)}
        return cls(source, model_name, {**special, **arguments}, day, closes_thoughts, option)

    @property
    def writes_date(self) -> bool:
        """Whether the template may write the date."""
        return "strftime_now" in self.source

    def render(self, messages: Sequence[Message], *, answer_follows: bool = True) -> str:
        """Render a conversation as text, up to the model's answer.

        Raises ``UserError`` with the template's message if it refuses the conversation.
        """
        import jinja2

        try:
            with time_limit(SECONDS):
                text = self._compiled.render(
                    messages=[dict(message) for message in messages],
                    tools=None,
                    documents=None,
                    add_generation_prompt=answer_follows,
                    **self.arguments,
                )
        except TookTooLongError:
            raise UserError(
                f"{self.option}: the chat template of model {self.model_name} takes more than {SECONDS:g} s for a "
                "conversation"
            ) from None
        except (jinja2.TemplateError, TypeError, KeyError, ArithmeticError) as error:
            roles = "/".join(dict.fromkeys(message["role"] for message in messages))
            raise UserError(
                f"{self.option}: the chat template of model {self.model_name} refuses a conversation of "
                f"{roles} turns ({first_line(error)})"
            ) from None
        return text + closing_of(text) if answer_follows and self.closes_thoughts else text

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle: without the compiled template, which cannot be pickled."""
        return {name: value for name, value in vars(self).items() if name != "_compiled"}

    @cached_property
    def _compiled(self) -> jinja2.Template:
        import jinja2
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Generation(jinja2.ext.Extension):
            """``{% generation %}`` marks what a model wrote, for training. Here it has no effect."""

            tags = {"generation"}  # noqa: RUF012 - as in the library

            def parse(self, parser: Any) -> Any:
                """Return the block's content."""
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
        )
        without_random(environment)
        environment.filters["tojson"] = _as_json
        environment.globals["raise_exception"] = _raise_exception
        now = datetime.now() if self.day is None else datetime.fromisoformat(self.day)
        environment.globals["strftime_now"] = now.strftime
        try:
            return environment.from_string(self.source)
        except jinja2.TemplateError as error:
            raise UserError(
                f"{self.option}: the chat template of model {self.model_name} cannot be read ({first_line(error)})"
            ) from None


def thought_mark_in(source: str) -> str | None:
    """The mark with which a template's model begins a thought, even if the template itself does not write it."""
    for found in _TAG.finditer(source):
        if closed(found["open"]) in source:
            return found["open"]
    return None


def closed(mark: str) -> str:
    """The mark that ends a thought: ``</think>`` for ``<think>``."""
    return _CLOSED.get(mark, f"{mark[0]}/{mark[1:]}")


def thought_of(prompt: str) -> str | None:
    """The mark of a thought that begins at a prompt's end, such as ``<think>``; None if there is none."""
    opened = _OPENED.search(prompt)
    return opened["open"] if opened else None


def closing_of(prompt: str) -> str:
    """The text that closes the thought that begins at a prompt's end, as an empty thought; empty if there is none.

    It has the form of templates that can disable thinking: on separate lines, Cohere's on the same line.
    """
    mark = thought_of(prompt)
    if mark is None:
        return ""
    if mark in _CLOSED:
        return closed(mark)
    blank = "\n" if prompt.endswith("\n") else "\n\n"
    return f"{blank}{closed(mark)}\n\n"


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _as_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _read_config(file: Path) -> dict[str, Any]:
    config = json_file(file) if file.exists() else {}
    if not isinstance(config, dict):
        raise ValueError(f"{file.name} is not an object")
    return config


def _source(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The template from its file, or from the config, which has one text, or several by name."""
    if (folder / _FILE).exists():
        return (folder / _FILE).read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):
        sources = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = sources.get("default")
    if source is not None and not isinstance(source, str):
        raise ValueError(f"{_CONFIG}: chat_template is not a text")
    return source


def _token_text(token: Any) -> str:
    """A special token's text. Configs have it as a text or as an object with its ``content``."""
    return str(token["content"] if isinstance(token, dict) else token)
