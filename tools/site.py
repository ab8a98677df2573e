#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Build the documentation site: the manual, and the references of Rust, C, Python and the elements.

    tools/site.py FOLDER    writes the site into FOLDER; `make docs` installs what it needs and calls it

The manual's pages are those of docs/ and some of the repository's other pages, as they are; links
between them are rewritten, and links to files that are no page become plain text. The exit status
is 1 if mdBook or Doxygen warns, or if a link of the site leads nowhere.
"""

import html
import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOOK = ROOT / "docs" / "book"
# Pages from outside docs/.
ELSEWHERE = {
    "README.md": "start.md",
    "ARCHITECTURE.md": "architecture.md",
    "PROTOCOL.md": "protocol.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "tests/gpu/README.md": "gpu-suites.md",
    "tests/simcuda/README.md": "simulated-driver.md",
}
ELEMENTS = ["framesharesink", "framesharesrc"]
# Where the references of languages lie in the site, for links from pages.
REFERENCES = {
    "rust.md": "reference/rust/frameshare/index.html",
    "c.md": "reference/c/index.html",
    "python.md": "reference/python/frameshare.html",
}
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def pages():
    """Source of each page, by its name in the book."""
    found = {page.name: page for page in sorted((ROOT / "docs").glob("*.md"))}
    found.update({name: ROOT / source for source, name in ELSEWHERE.items()})
    return found


def rewritten(text, source, names, assets):
    """The page with links that lead inside the book, or are plain text."""

    def link(match):
        image, label, target = match.groups()
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return match.group(0)
        path, _, anchor = target.partition("#")
        file = (source.parent / path).resolve()
        if file in names:
            return f"[{label}]({names[file]}{'#' + anchor if anchor else ''})"
        if file.suffix in (".png", ".svg", ".json") and file.is_file():
            assets[file.name] = file
            return f"{image}[{label}]({file.name})"
        if not file.exists():
            raise SystemExit(f"site: {source.relative_to(ROOT)}: {target} does not exist")
        return f"`{file.relative_to(ROOT)}`" if label == path else label

    lines, fenced = [], False
    text = DIAGRAM.sub(lambda found: f'<pre class="mermaid">\n{html.escape(found[1])}</pre>', text)
    for line in text.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        code = fenced or line.startswith("    ")
        lines.append(line if code else LINK.sub(link, line))
    return "\n".join(lines)


def element_page(name):
    """Properties, pads and signals of an element, as GStreamer reports them."""
    import gi

    gi.require_version("Gst", "1.0")
    from gi.repository import GObject, Gst

    Gst.init(None)
    element = Gst.ElementFactory.make(name)
    if element is None:
        raise SystemExit(f"site: GStreamer does not find {name}: set GST_PLUGIN_PATH to the plugin's folder")
    factory = element.get_factory()

    def cell(text):
        return str(text).replace("|", "\\|").replace("\n", " ")

    lines = [
        f"# {name}",
        "",
        factory.get_metadata("description"),
        "",
        "## Properties",
        "",
        "| property | type | default | |",
        "| --- | --- | --- | --- |",
    ]
    inherited = {spec.name for spec in GObject.list_properties(GObject.type_parent(type(element)))}
    for spec in sorted(type(element).list_properties(), key=lambda spec: spec.name):
        if spec.name in inherited:
            continue
        default = spec.default_value
        nick = getattr(default, "value_nick", default)
        choices = getattr(spec, "enum_class", None)
        kind = spec.value_type.name
        if choices:
            kind = ", ".join(value.value_nick for value in choices.__enum_values__.values())
        writable = "" if spec.flags & GObject.ParamFlags.WRITABLE else "read-only. "
        lines.append(f"| `{spec.name}` | {cell(kind)} | {cell(nick)} | {writable}{cell(spec.blurb)} |")
    lines += ["", "## Pads", ""]
    for template in factory.get_static_pad_templates():
        where = f"{template.direction.value_nick}, {template.presence.value_nick}"
        caps = template.get_caps().to_string().replace("; ", "\n")
        lines += [f"`{template.name_template}`, {where}:", "", "```", caps, "```", ""]
    signals = GObject.signal_list_names(type(element))
    if signals:
        lines += ["## Signals", "", "| signal | |", "| --- | --- |"]
        for signal in sorted(signals):
            query = GObject.signal_query(signal, type(element))
            kind = "action" if query.signal_flags & GObject.SignalFlags.ACTION else "emitted by the element"
            types = ", ".join(kind_.name for kind_ in query.param_types)
            lines.append(f"| `{signal}` ({types}) → {query.return_type.name} | {kind} |")
    return "\n".join(lines) + "\n"


def run(*command, **options):
    """Run a tool; what it warns of is an error."""
    done = subprocess.run(command, text=True, capture_output=True, **options)
    output = done.stdout + done.stderr
    if done.returncode or re.search(r"\bwarn(ing)?\b", output, re.IGNORECASE):
        raise SystemExit(f"site: {' '.join(map(str, command))}:\n{output}")


def manual(site, work):
    """The book, from pages whose links are rewritten."""
    source = work / "src"
    source.mkdir(parents=True)
    names = {file.resolve(): name for name, file in pages().items()}
    assets = {}
    for name, file in pages().items():
        text = rewritten(file.read_text(), file, names, assets)
        if name in REFERENCES:
            title, _, rest = text.partition("\n")
            text = f"{title}\n\nEvery item: [the reference]({REFERENCES[name]}).\n{rest}"
        (source / name).write_text(text)
    for name in ELEMENTS:
        (source / f"{name}.md").write_text(element_page(name))
    for name, file in assets.items():
        shutil.copy(file, source / name)
    listed = set(re.findall(r"\]\(([^)]+)\)", (BOOK / "SUMMARY.md").read_text()))
    if missing := sorted(set(names.values()) - listed):
        raise SystemExit(f"site: add {', '.join(missing)} to docs/book/SUMMARY.md")
    shutil.copy(BOOK / "SUMMARY.md", source)
    shutil.copy(BOOK / "wide.css", work)
    shutil.copy(BOOK / "book.toml", work)
    run("mdbook-mermaid", "install", work)  # Only its scripts are used: it changes book.toml.
    shutil.copy(BOOK / "book.toml", work)
    run("mdbook", "build", "--dest-dir", site, work)


def references(site, rustdoc, python):
    """References that the manual links to: rustdoc, the header for C, the Python package."""
    reference = site / "reference"
    shutil.copytree(rustdoc, reference / "rust")
    c = reference / "c"
    c.mkdir()
    settings = {
        "PROJECT_NAME": "libframeshare",
        "INPUT": ROOT / "crates/frameshare-c/include",
        "STRIP_FROM_PATH": ROOT,
        "OUTPUT_DIRECTORY": c.parent,
        "HTML_OUTPUT": "c",
        "GENERATE_LATEX": "NO",
        "OPTIMIZE_OUTPUT_FOR_C": "YES",
        "JAVADOC_AUTOBRIEF": "YES",
        "EXTRACT_ALL": "YES",
        "HAVE_DOT": "NO",
        "QUIET": "YES",
        # Parameters have their description where their name does not say it.
        "WARN_IF_INCOMPLETE_DOC": "NO",
    }
    text = "".join(f"{name} = {value}\n" for name, value in settings.items())
    run("doxygen", "-", input=text)
    shutil.copytree(python, reference / "python")


class Page(html.parser.HTMLParser):
    """Links and anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = set(), {""}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name"):
                self.anchors.add(value)
            elif name in ("href", "src") and value and tag != "base":
                self.links.add(value)


def dead_links(site):
    """Links of the manual's pages that lead nowhere in the site, as texts."""
    read = {}

    def page(path):
        if path not in read:
            read[path] = Page(path.read_text())
        return read[path]

    dead = []
    for file in sorted(site.glob("*.html")):
        if file.name in ("404.html", "print.html", "toc.html"):
            continue
        for link in sorted(page(file).links):
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = file if not parts.path else site / urllib.parse.unquote(parts.path)
            if not target.is_file():
                dead.append(f"{file.name}: {link}")
            elif parts.fragment and target.suffix == ".html":
                if urllib.parse.unquote(parts.fragment) not in page(target).anchors:
                    dead.append(f"{file.name}: {link}")
    return dead


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    site = pathlib.Path(sys.argv[1]).resolve()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    work = target / "docs-site"
    for folder in (work, site):
        shutil.rmtree(folder, ignore_errors=True)
    manual(site, work)
    references(site, target / "doc", target / "python-reference")
    dead = dead_links(site)
    for line in dead:
        print(f"FAIL docs/{line} leads nowhere")
    if dead:
        raise SystemExit(1)
    print(f"PASS docs: {len(list(site.glob('*.html')))} pages in {site}")


if __name__ == "__main__":
    main()
