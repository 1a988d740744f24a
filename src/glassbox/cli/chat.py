"""What a chat template takes on the command line: messages and tools from files, a template, variables for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from glassbox.cli.output import read_file
from glassbox.errors import ParameterError, PromptError
from glassbox.text.files import once

if TYPE_CHECKING:
    from glassbox.text.templates import Templates

MessagesOption = typer.Option(
    None, "--messages", metavar="FILE",
    help="In place of PROMPT: a JSON list of messages, or an object with messages and tools. - is standard input.",
)  # fmt: skip
ToolsOption = typer.Option(None, "--tools", metavar="FILE", help="A JSON list of tools for the chat template.")
TemplateOption = typer.Option(
    None, "--template", metavar="NAME|FILE", help="Which of the model's chat templates, or a file that holds one."
)
TemplateArgOption = typer.Option(
    [], "--template-arg", metavar="K=V", help="A variable for the chat template; V is JSON. May be repeated."
)
ContinueOption = typer.Option(False, "--continue", help="Go on with the last of --messages, the assistant's.")

KEYS = ("messages", "tools", "documents")


def chat_flags(
    messages: str | None, tools: str | None, template: str | None, variables: Sequence[str], continue_final: bool
) -> dict[str, Any]:
    """What was given of these flags, by the names `Model.stream` has for it. Raises PromptError, ParameterError."""
    asked: dict[str, Any] = {}
    if messages is not None:
        given = _json_of(messages, "--messages")
        asked = given if isinstance(given, dict) else {"messages": given}
        if unknown := sorted(set(asked) - set(KEYS)):
            raise PromptError(f"{messages} has {unknown[0]!r}, but may have {', '.join(KEYS)}", param="messages")
        if not isinstance(asked.get("messages"), list):
            raise PromptError(f"{messages} must hold a list of messages, or an object with one", param="messages")
    if tools is not None:
        asked["tools"] = _json_of(tools, "--tools")
    if template is not None:
        asked["template"] = template
    if variables:
        asked["template_kwargs"] = dict(map(_variable, variables))
    if continue_final:
        if messages is None:
            raise PromptError("--continue needs --messages that end with the assistant's", param="messages")
        asked["continue_final"] = True
    return asked


def template_text(asked: str, templates: Templates) -> str:
    """A name of one of the model's templates as it is; of a file, what it holds. Raises PromptError."""
    from glassbox.text.template_files import read_template

    if asked in templates.sources:
        return asked
    if not asked:
        raise PromptError("--template is empty: it must be a name, or that of a file", param="template")
    if not Path(asked).is_file():
        names = ", ".join(sorted(templates.sources)) or "none"
        what = "is no file" if Path(asked).exists() else "no such file"
        raise PromptError(f"--template {asked}: {what}, and no template of the model's ({names})", param="template")
    text = read_template(Path(asked))
    if "{{" not in text and "{%" not in text:
        raise PromptError(f"--template {asked}: the file holds no chat template", param="template")
    return text


def _variable(text: str) -> tuple[str, Any]:
    from glassbox.text.template import RESERVED

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ParameterError("--template-arg", text, "NAME=VALUE")
    if name in RESERVED:
        raise ParameterError("--template-arg", text, f"of another name than {', '.join(sorted(RESERVED))}")
    try:
        return name, _strict(value)
    except (ValueError, RecursionError) as e:
        allowed = f'NAME=VALUE with a JSON value, as true, 3 or "text" ({e})'
        raise ParameterError("--template-arg", text, allowed) from None


def _json_of(path: str, flag: str) -> Any:
    text = read_file(path, flag)
    try:
        return _strict(text)
    except RecursionError:
        raise PromptError(f"{flag} {path}: nests too deep", param="messages") from None
    except ValueError as e:
        raise PromptError(f"{flag} {path}: is not JSON: {e}", param="messages") from None


def _strict(text: str) -> Any:
    """JSON as its standard has it: no NaN, and no key twice, of which Python would take the last. Raises ValueError."""
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=once)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
