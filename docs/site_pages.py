"""What the documentation site has beside the pages of this folder: the command line and the Python API.

A hook of MkDocs (``mkdocs.yml``). Links of pages to files elsewhere in the repository lead to the repository.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any

COMMAND_LINE, API = "reference/command-line.md", "reference/api.md"
LINK = re.compile(r"(\]\(|src=\"|srcset=\"|href=\")(\.\./[^)\s\"#]+)")
SHIM = '<script src="https://unpkg.com/iframe-worker/shim"></script>'
"""What the theme loads for the search of a site that is opened as files: browsers start no workers from files."""
WORKER = """<script>
if (location.protocol === "file:") window.Worker = class extends EventTarget {
  constructor(url) {
    super();
    const frame = document.body.appendChild(document.createElement("iframe"));
    frame.hidden = true;
    this.inside = frame.contentWindow;
    this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    this.ready = new Promise((done) => {
      const script = this.inside.document.createElement("script");
      script.onload = done;
      script.src = url;
      this.inside.document.body.appendChild(script);
    });
  }
  postMessage(data) {
    this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
  }
};
</script>"""
"""The same in a hidden frame, without a network."""
CODE = re.compile(r"(?ms)(^```.*?^```|`[^`\n]+`)")
INLINE = re.compile(r"(?<!<pre>)(?<!<span></span>)<code>([^<]+)</code>")
"""Code within a sentence, as HTML, in contrast to a block of code."""
NAME = re.compile(r"(?<!\S)(?=\S*-)\S{2,30}(?!\S)")
"""A word of code with a hyphen. A longer one could be wider than a phone, so it may be broken."""
ENTRY = re.compile(r"(?<=<span class=\"md-ellipsis\">)[^<]+")
"""The text of an entry in the contents of a page."""
OPTION = re.compile(r"(?<!\S)--\S{1,30}")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, COMMAND_LINE, content="\n".join(command_line())))
    files.append(File.generated(config, API, content="\n".join(api())))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Let links out of the folder of pages lead to the repository."""
    here = posixpath.dirname(page.file.src_uri)

    def linked(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", here, match[2]))
        kind = "tree" if "." not in posixpath.basename(path) else "blob"
        return f"{match[1]}{config.repo_url}/{kind}/main/{path}"

    parts = CODE.split(markdown)
    return "".join(part if CODE.fullmatch(part) else LINK.sub(linked, part) for part in parts)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Remove the roles of docstrings (``:class:`` before a name), and keep names such as ``--data-dir`` on one line."""
    if page.file.src_uri == API:
        html = re.sub(r":(?:class|func|meth|mod|data):(?=\s*<)", "", html)
    return INLINE.sub(lambda code: f"<code>{NAME.sub(_unbroken, code[1])}</code>", html)


def _unbroken(name: re.Match[str]) -> str:
    """A name that ``site.css`` keeps on one line. Copied, it has its plain hyphens."""
    return f'<span class="name">{name[0]}</span>'


def on_post_page(output: str, **_: Any) -> str:
    """Search without a network, too, and keep options on one line in the contents of a page."""
    return ENTRY.sub(lambda entry: OPTION.sub(_unbroken, entry[0]), output).replace(SHIM, WORKER)


on_post_template = on_post_page  # that of 404.html


def command_line() -> Iterator[str]:
    """The page of all commands with their options, as ``--help`` has them."""
    import typer.main

    from icl_bench.cli import program

    yield "# Command line\n"
    yield "All commands and options, from the program itself. [Options](../options.md) explains their values."
    for name, command in sorted(typer.main.get_command(program()).commands.items()):  # type: ignore[attr-defined]
        yield f"\n## icl-bench {name}\n"
        yield re.sub(r"\s*\n\s*", "\n", (command.help or "").strip())
        groups: dict[str, list[str]] = {}
        for one in command.params:
            if getattr(one, "hidden", False) or not one.opts:
                continue
            is_argument = one.param_type_name == "argument"
            placeholder = f"`{one.metavar}`".replace("|", "\\|") if one.metavar else ""
            flags = ", ".join(f"`{flag}`" for flag in (*one.opts, *one.secondary_opts))
            shown = placeholder if is_argument else f"{flags} {placeholder}".rstrip()
            told = " ".join((getattr(one, "help", None) or "").split()).replace("|", "\\|").replace("<", "&lt;")
            required = " **Required.**" if one.required else ""
            heading = getattr(one, "rich_help_panel", None) or ("Arguments" if is_argument else "Options")
            groups.setdefault(heading, []).append(f"| {shown} | {told}{required} |")
        for heading, rows in groups.items():
            kind = "argument" if heading == "Arguments" else "option"
            yield f"\n**{heading}**\n\n| {kind} | what it does |\n| --- | --- |"
            yield from rows


def api() -> Iterator[str]:
    """The page of the public interface in Python."""
    import icl_bench

    yield "# Python API\n"
    yield "[Python](../python.md) has examples. `**options` are those of the command of the same name."
    for name in icl_bench.__all__:
        if name != "__version__":
            yield f"\n::: {getattr(icl_bench, name).__module__}.{name}\n"
