"""A model's chat template: messages to text, as ``apply_chat_template`` of transformers does it.

Rendered here because the rest of a plan needs no transformers; the language is theirs (Jinja in a
sandbox, with ``raise_exception``, ``strftime_now``, ``tojson``, ``generation`` blocks), and a
differential test holds both to the same text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_bench.errors import UserError
from icl_bench.prompts.rendering import Message
from icl_bench.wording import first_line

if TYPE_CHECKING:
    import jinja2

_FILE, _CONFIG = "chat_template.jinja", "tokenizer_config.json"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class ChatTemplate:
    """A template, what it is told beside the messages, and whose it is."""

    source: str
    """The template itself, in Jinja's language."""
    whose: str
    """The model, for messages."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """``enable_thinking`` and the like; the names of special tokens are among them."""

    @classmethod
    def of_folder(cls, folder: Path, whose: str, arguments: Mapping[str, Any]) -> ChatTemplate:
        """Read the template that lies with a tokenizer's files.

        Raises ``UserError`` where there is none, or it cannot be read.
        """
        try:
            config = _read_config(folder / _CONFIG)
            source = _source(folder, config)
        except (OSError, ValueError) as error:
            raise UserError(f"model {whose}: its chat template cannot be read ({first_line(error)})") from None
        if source is None:
            raise UserError(f"--chat: model {whose} has no chat template; give an instruct model, or leave --chat out")
        special = {name: _spelled(config[name]) for name in _SPECIAL if config.get(name)}
        return cls(source, whose, {**special, **arguments})

    def render(self, messages: Sequence[Message], *, answer_follows: bool = True) -> str:
        """The whole conversation as text, up to where the model answers.

        Raises ``UserError`` with the template's own words where it refuses the messages.
        """
        import jinja2

        try:
            return self._compiled.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=answer_follows,
                **self.arguments,
            )
        except (jinja2.TemplateError, TypeError, KeyError, ArithmeticError) as error:
            roles = "/".join(dict.fromkeys(message["role"] for message in messages))
            raise UserError(
                f"--chat: the chat template of model {self.whose} refuses a conversation of "
                f"{roles} turns ({first_line(error)})"
            ) from None

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: compiled, a template cannot be sent."""
        return {name: value for name, value in vars(self).items() if name != "_compiled"}

    @cached_property
    def _compiled(self) -> jinja2.Template:
        import jinja2
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Generation(jinja2.ext.Extension):
            """``{% generation %}`` marks what a model wrote, for training; here it shows it."""

            tags = {"generation"}  # noqa: RUF012 - as the library has it

            def parse(self, parser: Any) -> Any:
                """Give the block's own content."""
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _as_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            return environment.from_string(self.source)
        except jinja2.TemplateError as error:
            raise UserError(
                f"--chat: the chat template of model {self.whose} cannot be read ({first_line(error)})"
            ) from None


def _refuse(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _as_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _read_config(file: Path) -> dict[str, Any]:
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{file.name} is no object")
    return found


def _source(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The template's file, or what the config has: one text, or several by name."""
    if (folder / _FILE).exists():
        return (folder / _FILE).read_text(encoding="utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    if found is not None and not isinstance(found, str):
        raise ValueError(f"{_CONFIG}: chat_template is no text")
    return found


def _spelled(token: Any) -> str:
    """A special token's text: configs have it plain, or with how it is found."""
    return str(token["content"] if isinstance(token, dict) else token)
