"""A model's chat templates by name, and which of them a conversation takes. Comes in: {name: source}. Goes out: one
`ChatTemplate`. Where they come from is template_files.py's business."""

from __future__ import annotations

from collections.abc import Mapping

from glassbox.errors import TemplateError
from glassbox.text.template import ChatTemplate

GIVEN = "given"  # the name of a template that is the caller's, not the model's


class Templates:
    """Each is parsed when it is first asked for."""

    def __init__(
        self, sources: Mapping[str, str], *, bos: str, eos: str, specials: Mapping[str, str] | None = None
    ) -> None:
        self.sources, self.bos, self.eos, self.specials = dict(sources), bos, eos, specials
        self._made: dict[str, ChatTemplate] = {}

    def __bool__(self) -> bool:
        return bool(self.sources)

    def __repr__(self) -> str:
        return f"<Templates {', '.join(self.sources) or 'none'}>"

    def choose(self, asked: str | None = None, *, tools: bool = False) -> ChatTemplate:
        """The one of this name, or, of a text with {{ or {%, that text itself; else as transformers chooses: with
        tools the one named tool_use, if there is one, else the default.

        Raises TemplateError: there is none, it has no such name, or it cannot be parsed.
        """
        if asked is not None and asked not in self.sources and ("{{" in asked or "{%" in asked):
            return self._parsed(asked, GIVEN)
        if not self.sources:
            raise TemplateError("the model has no chat template")
        listed = ", ".join(sorted(self.sources))
        if asked is not None and asked not in self.sources:
            raise TemplateError(f"the model has no chat template named {asked[:100]!r}; it has: {listed}")
        name = asked or ("tool_use" if tools and "tool_use" in self.sources else "default")
        if name not in self.sources:
            raise TemplateError(f"the model has several chat templates and no default: name one of {listed}")
        if name not in self._made:
            self._made[name] = self._parsed(self.sources[name], name)
        return self._made[name]

    def _parsed(self, source: str, name: str) -> ChatTemplate:
        return ChatTemplate(source, bos=self.bos, eos=self.eos, name=name, specials=self.specials)
