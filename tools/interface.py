#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Write the public interface to docs/interface.txt, one name a line, or compare the file with the sources.

    tools/interface.py write    # after a change of the interface
    tools/interface.py check    # in `make test`

Both need the two programs of the build that the head of the file names, and rustdoc. `check` fails if the file
differs, if a stable line changed after CHANGELOG.md last did, and if an option of the engine has another default in
the elements, in Python or in docs/limits.md, but for DEFAULTS.
"""

import ast
import difflib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
FILE = ROOT / "docs/interface.txt"
NEEDED = "cargo build --workspace --locked --bin frameshare --example print-elements"
HEADER = f"""\
# The public interface of frameshare, one name a line, with its type and its default.
# Releases may change experimental names. A change of a stable line needs an entry in CHANGELOG.md.
# The table in tools/interface.py says which names are experimental. `make test` compares this file. To write it:
#   {NEEDED}
#   tools/interface.py write
"""
# Beginnings of lines. All other names are stable.
EXPERIMENTAL = [
    # dma-bufs, and layouts of devices
    "(property framesharesrc|structure framesharesink-stats)[.]dma-bufs",
    "pad framesharesink.sink: .*memory:DMABuf",
    "rust (?!.*udmabuf).*[Dd]ma_?[Bb]uf",
    # parts of the engine below readers and exporters
    "rust frameshare::machine",
    "rust frameshare::memory::(?!Address|MemoryError|MemoryFault|Operation)",
    "rust frameshare::fence::(?!Written|FenceError|FenceFault)",
    # conversion to RGB, and results of models
    "python frameshare.Frame.rgb",
    "python frameshare.(create_results|open_results|Key|Matcher|ResultExporter|ResultStream)",
    # recordings
    "(command|json) (record|play)",
    # pages that are to be parts of others
    "page docs/(?!(c|concepts|gpu|ingest|performance|python|rust|tool|verification)[.]md)",
]
# Options with another default than the engine's, and the reason.
DEFAULTS = {
    "framesharesink.slow-readers": "the sink knows whether upstream is live",
    "framesharesink.history": "a viewer that joins a slow stream sees something",
    "framesharesrc.max-held": "the exporter chooses",
    "framesharesrc.max-queued": "the exporter chooses",
    "frameshare.open.reconnect": "a program reads on after a restart of the exporter",
    "frameshare.open_many.reconnect": "as open",
    "frameshare.open_results.reconnect": "as open",
    "frameshare.open_results.max_held": "results are small",
}
# The version of rustdoc's JSON that this tool reads.
RUSTDOC_FORMAT = 57
CRATES = {"frameshare": "frameshare", "gstframeshare": "gst-plugin-frameshare"}
# Those of whose items CRATES re-export some.
OTHERS = {
    "frameshare_protocol": "frameshare-protocol",
    "frameshare_core": "frameshare-core",
    "frameshare_process": "frameshare-process",
    "frameshare_cuda": "frameshare-cuda",
}


class Skipped(Exception):
    """A part of the interface cannot be read with the tools of this machine."""


def output(*command, **options):
    """Run a program of the build, or cargo."""
    try:
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, **options).stdout
    except FileNotFoundError:
        raise SystemExit(f"interface: {command[0]} is missing: run {NEEDED}") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"interface: {' '.join(map(str, command))} failed:\n{error.stderr}") from None


def sources(pattern):
    """Return the text of each source file, without tests."""
    files = [file for file in sorted(ROOT.glob(pattern)) if not re.search(r"/tests?(/|[.]rs$)", str(file))]
    return [file.read_text().split("#[cfg(test)]\nmod")[0] for file in files]


def elements():
    """Return elements with pads, properties and signals, and structures with fields."""
    texts = sources("plugins/frameshare/src/**/*.rs")
    signals = sorted({name for text in texts for name in re.findall(r'Signal::builder\("([a-z-]+)"\)', text)})
    lines = output(TARGET / "debug/examples/print-elements", *signals).splitlines()
    token = re.compile(
        r'let name = "(?P<variable>[\w-]+)"|Structure::builder\((?:"(?P<name>[\w-]+)"|name)\)'
        r'|\.set_name\("(?P<renamed>[\w-]+)"\)|\.(?:field|field_if_some|set)\(\s*"(?P<field>[\w-]+)"'
    )
    for text in (text for text in texts if "Structure" in text):
        structure = variable = None
        for found in token.finditer(text):
            variable = found["variable"] or variable
            if not found["field"]:
                structure = found["name"] or found["renamed"] or variable
            elif structure:
                lines.append(f"structure {structure}.{found['field']}")
    return sorted(set(lines))


# ---- Rust, by rustdoc's JSON


def listed(values, separator=", "):
    return separator.join(map(kind, values))


def kind(value):
    """Return a type, an argument or a bound as Rust writes it, without modules."""
    match value:
        case {"resolved_path": {"path": path, "args": arguments}} | {"trait": {"path": path, "args": arguments}}:
            return path.rsplit("::", 1)[-1] + (kind(arguments) if arguments else "")
        case {"angle_bracketed": {"args": values, "constraints": constraints}}:
            inner = [*map(kind, values), *(one["name"] + kind(one["binding"]) for one in constraints)]
            return f"<{', '.join(inner)}>" if inner else ""
        case {"parenthesized": {"inputs": inputs, "output": result}}:
            return f"({listed(inputs)})" + (f" -> {kind(result)}" if result else "")
        case {"equality": one}:
            return f" = {kind(one)}"
        case {"constraint": values}:
            return f": {listed(values, ' + ')}"
        case {"primitive": "never"}:
            return "!"
        case {"primitive": name} | {"generic": name} | {"lifetime": name} | {"outlives": name}:
            return name
        case {"const": {"expr": text}} | {"constant": {"expr": text}}:
            return text
        case {"tuple": [one]}:
            return f"({kind(one)},)"
        case {"tuple": values}:
            return f"({listed(values)})"
        case {"slice": one}:
            return f"[{kind(one)}]"
        case {"array": {"type": one, "len": length}}:
            return f"[{kind(one)}; {length}]"
        case {"borrowed_ref": {"lifetime": name, "is_mutable": is_mutable, "type": one}}:
            return f"&{name + ' ' if name else ''}{'mut ' if is_mutable else ''}{kind(one)}"
        case {"raw_pointer": {"is_mutable": is_mutable, "type": one}}:
            return f"*{'mut' if is_mutable else 'const'} {kind(one)}"
        case {"impl_trait": values}:
            return f"impl {listed(values, ' + ')}"
        case {"dyn_trait": {"traits": values, "lifetime": name}}:
            return f"dyn {listed(values, ' + ')}" + (f" + {name}" if name else "")
        case {"trait_bound": {"modifier": modifier} as one}:
            return ("?" if modifier == "maybe" else "") + kind({"resolved_path": one["trait"]})
        case {"qualified_path": {"self_type": one, "name": name}}:
            return f"{kind(one)}::{name}"
        case {"function_pointer": {"sig": one}}:
            return f"fn{signature(one)}"
        case {"use": values}:
            return f"use<{listed(values)}>"
        case {"param": name}:
            return name
        case {"type": one}:
            return kind(one)
        case "infer":
            return "_"
    raise SystemExit(f"interface: tools/interface.py does not know this type of rustdoc: {value}")


def signature(value):
    short = {"Self": "self", "&Self": "&self", "&mut Self": "&mut self"}
    pairs = [(name, kind(one)) for name, one in value["inputs"]]
    texts = [short[one] if name == "self" and one in short else f"{name}: {one}" for name, one in pairs]
    return f"({', '.join(texts)})" + (f" -> {kind(value['output'])}" if value["output"] else "")


def generics(value):
    """Return parameters in angle brackets, and clauses."""
    names, clauses = [], []
    for one in value["params"]:
        match one["kind"]:
            case {"type": {"is_synthetic": False, "bounds": bounds}}:
                names.append(one["name"] + (f": {listed(bounds, ' + ')}" if bounds else ""))
            case {"lifetime": _}:
                names.append(one["name"])
            case {"const": inner}:
                names.append(f"const {one['name']}: {kind(inner['type'])}")
    for one in value["where_predicates"]:
        if inner := one.get("bound_predicate"):
            clauses.append(f"{kind(inner['type'])}: {listed(inner['bounds'], ' + ')}")
    return (f"<{', '.join(names)}>" if names else ""), (f" where {', '.join(clauses)}" if clauses else "")


def described(item):
    """Return the text of an item behind its name, and the numbers of its members."""
    ((form, inner),) = item["inner"].items()
    names, where = generics(inner["generics"]) if "generics" in inner else ("", "")
    head = " non_exhaustive" if "non_exhaustive" in item["attrs"] else ""
    match form:
        case "function":
            prefix = "".join(f"{one} " for one in ("const", "async", "unsafe") if inner["header"][f"is_{one}"])
            return f" {prefix}fn{names}{signature(inner['sig'])}{where}", []
        case "constant":
            return f" const {kind(inner['type'])} = {inner['const']['value'] or inner['const']['expr']}", []
        case "assoc_const":
            return f" const {kind(inner['type'])}" + (f" = {inner['value']}" if inner["value"] else ""), []
        case "assoc_type":
            return " type" + (f" = {kind(inner['type'])}" if inner["type"] else ""), []
        case "type_alias":
            return f"{names} = {kind(inner['type'])}", []
        case "struct_field":
            return f": {kind(inner)}", []
        case "enum":
            return f"{head} enum{names}{where}", inner["variants"]
        case "trait":
            bounds = f": {listed(inner['bounds'], ' + ')}" if inner["bounds"] else ""
            return f" trait{names}{bounds}{where}", inner["items"]
        case "struct" | "variant":
            members = []
            match inner["kind"]:
                case {"plain": {"fields": members}} | {"struct": {"fields": members}} | {"tuple": members}:
                    pass
            number = f" = {inner['discriminant']['value']}" if inner.get("discriminant") else ""
            return f"{head} {form}{names}{where}{number}", [id for id in members if id is not None]
        case "macro":
            return " macro", []
    raise SystemExit(f"interface: tools/interface.py does not know this kind of item of rustdoc: {form}")


def rust():
    """Return public items of the published crates, those of other crates by the names that re-export them."""
    # Only rustdoc itself gets the variable that admits JSON: with it, build scripts would run again.
    wrapper = TARGET / "interface-rustdoc"
    wrapper.write_text('#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc "$@"\n')
    wrapper.chmod(0o755)
    flags = {"RUSTDOC": str(wrapper), "RUSTDOCFLAGS": "-Z unstable-options --output-format json"}
    packages = [f"--package={name}" for name in (CRATES | OTHERS).values()]
    output("cargo", "doc", "--no-deps", "--locked", "--lib", *packages, env=os.environ | flags)
    crates = {name: json.loads((TARGET / f"doc/{name}.json").read_text()) for name in CRATES | OTHERS}
    version = crates["frameshare"]["format_version"]
    if version != RUSTDOC_FORMAT:
        raise Skipped(f"rustdoc writes version {version} of its JSON, and tools/interface.py reads {RUSTDOC_FORMAT}")
    numbers = {
        (name, *one["path"]): id
        for name, crate in crates.items()
        for id, one in crate["paths"].items()
        if one["crate_id"] == 0
    }

    def resolve(crate, id):
        """Return the crate that defines an item, and its number there."""
        if id in crates[crate]["index"]:
            return crate, id
        place = crates[crate]["paths"][id]["path"]
        return place[0], numbers.get((place[0], *place))

    def members(crate, ids, parent):
        for id in map(str, ids):
            if item := crates[crate]["index"].get(id):
                yield crate, id, f"{parent}::{item['name'] or item['inner']['use']['name']}"

    def is_named(value, crate):
        """Return whether users can name all types and traits of a value: those of OTHERS by a name of CRATES alone."""
        match value:
            case {"id": int(id), "path": _, "args": arguments}:
                place = crates[crate]["paths"].get(str(id), {"path": [crate]})["path"]
                known = place[0] not in OTHERS or resolve(crate, str(id)) in places
                return known and is_named(arguments, crate)
            case dict():
                return all(is_named(one, crate) for one in value.values())
            case list():
                return all(is_named(one, crate) for one in value)
        return True

    def lines(crate, id, name):
        """Return an item, its members, its functions and the traits that are implemented by hand."""
        index = crates[crate]["index"]
        text, ids = described(index[id])
        yield f"rust {name}{text}"
        for member in members(crate, ids, name):
            yield from lines(*member)
        ((_, inner),) = index[id]["inner"].items()
        for block in (index[str(one)] for one in inner.get("impls", [])):
            of = block["inner"]["impl"]
            if of["trait"] is None:
                for _, one, member in members(crate, of["items"], name):
                    if index[one]["visibility"] == "public":
                        yield from lines(crate, one, member)
            elif not (of["is_synthetic"] or of["blanket_impl"] or "automatically_derived" in block["attrs"]):
                line = f"rust {name} impl {kind({'resolved_path': of['trait']})} for {kind(of['for'])}"
                implemented.append((line, [of["trait"], of["for"]], crate))

    found, places, implemented = [], {}, []
    waiting = [(name, str(crates[name]["root"]), name) for name in CRATES]
    # The names nearest to the root come first: each item is described under its shortest one.
    while waiting:
        crate, id, name = waiting.pop(0)
        ((form, inner),) = crates[crate]["index"][id]["inner"].items()
        if form == "module":
            waiting += members(crate, inner["items"], name)
        elif form == "use":
            where, number = resolve(crate, str(inner["id"]))
            if inner["is_glob"] or number is None:
                found.append(f"rust {name} = {inner['source']}{'::*' if inner['is_glob'] else ''}")
            else:
                waiting.insert(0, (where, number, name))
        elif (crate, id) in places:
            found.append(f"rust {name} = {places[crate, id]}")
        else:
            places[crate, id] = name
            found += lines(crate, id, name)
    found += [line for line, kinds, crate in implemented if is_named(kinds, crate)]
    return sorted(set(found))


# ---- C, C++ and Python, by their texts


def c():
    """Return macros, enumerators, structs with fields, and functions, in the order of the headers."""
    found = []
    for header in ["crates/frameshare-c/include/frameshare.h", "plugins/frameshare/include/frameshare/gstframeshare.h"]:
        text = re.sub(r"/\*.*?\*/", "", (ROOT / header).read_text(), flags=re.DOTALL).replace("\\\n", " ")
        found += [f"{name} = {value}" for name, value in re.findall(r"^#define (\w+)[ \t]+(\S.*)$", text, re.MULTILINE)]
        text = re.sub(r'^#.*$|extern "C" \{|^static inline |G_(BEGIN|END)_DECLS', "", text, flags=re.MULTILINE)
        # The body of a function becomes the end of its declaration.
        text = re.sub(r"\) \{.*?\} ", ");", " ".join(text.split()) + " ")
        types = re.compile(r"(?:typedef )?(enum|struct) (\w+) \{(.*?)\} ?(\w*);")
        for keyword, tag, body, name in types.findall(text):
            members = re.split("," if keyword == "enum" else ";", body)
            found += [f"{keyword} {name or tag}: {member.strip()}" for member in members if member.strip()]
        found += [one.strip() for one in types.sub("", text).split(";") if one.strip(" }")]
    return ["c " + " ".join(line.split()) for line in found]


def cpp():
    """Return functions, and public members of classes, of the header for C++."""
    text = re.sub(r"//.*", "", (ROOT / "crates/frameshare-c/include/frameshare.hpp").read_text())
    text = re.sub(r"namespace detail \{.*?\n\}", "", text, flags=re.DOTALL).replace("= {}", "= \0")
    found = []
    types = re.compile(r"^(?:class|struct) (\w+)( : .*?)? \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
    for name, bases, body in types.findall(text):
        public = body.partition("private:")[0].replace("public:", "")
        members = re.findall(r"^  ([^\s{}][^{};]*?)(?: : [^{};]*)?\s*[{;]", public, re.MULTILINE)
        found += [f"class {name}{bases}", *(f"class {name}: {member}" for member in members)]
    found += re.findall(r"^inline ([^{};]*?)\s*[{;]", text, re.MULTILINE)
    return ["c++ " + " ".join(line.replace("\0", "{}").split()) for line in found]


def names_of(node):
    """Return the names that a statement of Python defines."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.name]
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return [name]
    return []


def of_python(node, name, module):
    """Return a definition and its members."""
    match node:
        case ast.ClassDef():
            bases = list(map(ast.unparse, node.bases))
            public = [base for base in bases if not base.startswith("_")]
            yield f"python {name} class" + (f"({', '.join(public)})" if public else "")
            inherited = [one for base in bases if base not in public for one in module[base][0].body]
            for one in node.body + inherited:
                for member in names_of(one):
                    is_special = member.startswith("__") and member not in ("__reduce__", "__repr__", "__slots__")
                    if is_special or not member.startswith("_"):
                        yield from of_python(one, f"{name}.{member}", module)
        case ast.FunctionDef(decorator_list=[ast.Name(id="property")]):
            yield f"python {name}: {ast.unparse(node.returns)}, read-only"
        case ast.FunctionDef(decorator_list=[ast.Attribute(attr="setter")]):
            yield f"python {name} can be set"
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
            result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            yield f"python {name} {word}({ast.unparse(node.args)}){result}"
        case ast.AnnAssign():
            yield f"python {name}: {ast.unparse(node.annotation)}"
        case ast.Assign():
            yield f"python {name} = {ast.unparse(node.value)}"


def python():
    """Return names of the package frameshare, and of frameshare.events."""
    package = ROOT / "crates/frameshare-python/python/frameshare"

    def read(name):
        files = [package / f"{name}.pyi", package / f"{name}.py", package / name / "__init__.py"]
        tree, module = ast.parse(next(file for file in files if file.is_file()).read_text()), {}
        for node in tree.body:
            for defined in names_of(node):
                module.setdefault(defined, []).append(node)
        return tree, module

    tree, own = read("__init__")
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: node.module for node in imports for alias in node.names}
    found = []
    for name in ast.literal_eval(own["__all__"][0].value):
        _, module = read(modules[name] or name)
        inner = {name: f"frameshare.{name}"}
        if modules[name] is None:
            inner = {one: f"frameshare.{name}.{one}" for one in module if not one.startswith("_")}
        for one, full in inner.items():
            found += [line for node in module[one] for line in of_python(node, full, module)]
    return sorted(set(found))


# ---- The command, and what all parts share


def command():
    """Return commands of `frameshare` with their options, and the fields of their JSON."""

    def options(text):
        for option in re.split(r"\n(?= {2,6}-)", re.split(r"\n\n(?=\w)", text.partition("Options:\n")[2])[0]):
            head = re.match(r" *((?:-\w, )?--[\w-]+(?: <\w+>)?)", option)[1]
            extra = re.findall(r"\[(default: [^]]*|possible values: [^]]*)\]", " ".join(option.split()))
            yield ", ".join([head, *extra])

    help_ = output(TARGET / "debug/frameshare", "--help")
    shared = set(options(help_))
    found = [f"command {option}" for option in shared]
    for name in re.findall(r"^  ([a-z]+)", help_.partition("Commands:\n")[2].partition("\n\n")[0], re.MULTILINE):
        if name != "help":
            text = output(TARGET / "debug/frameshare", name, "--help")
            found.append("command " + re.search(r"Usage: frameshare (.*)", text)[1])
            found += [f"command {name} {option}" for option in options(text) if option not in shared]
    for name, schema in json.loads((ROOT / "docs/tool.schema.json").read_text())["$defs"].items():
        found += [f"json {name}: {shape(schema)}", *fields(f"json {name}", schema)]
    return sorted(set(found))


def shape(schema):
    """Return the type of a value in JSON."""
    match schema:
        case {"$ref": place}:
            return place.rsplit("/", 1)[-1]
        case {"enum": values}:
            return "|".join("null" if one is None else str(one) for one in values)
        case {"oneOf": schemas} | {"anyOf": schemas}:
            return " or ".join(map(shape, schemas))
        case {"items": dict(inner)}:
            return f"array of {shape(inner)}"
        case {"const": value}:
            return str(value)
    kinds = schema.get("type", "any")
    return kinds if isinstance(kinds, str) else "|".join(kinds)


def fields(name, schema):
    """Yield the fields of an object in JSON, and those of the objects in it."""
    for field, inner in schema.get("properties", {}).items():
        yield f"{name}.{field}: {shape(inner)}" + ("" if field in schema.get("required", []) else ", optional")
        yield from fields(f"{name}.{field}", inner)
    for inner in schema.get("oneOf", []) + schema.get("anyOf", []):
        yield from fields(name, inner)
    if isinstance(schema.get("items"), dict):
        yield from fields(f"{name}[]", schema["items"])


def metrics():
    """Return metrics with their labels, from the table in docs/tool.md, which has to be complete."""
    found, before, page = {}, "", (ROOT / "docs/tool.md").read_text()
    for cell, labels in re.findall(r"^\| (`frameshare_.*?) \| (.*?) \|", page, re.MULTILINE):
        before = before if labels == "as above" else labels
        found |= dict.fromkeys(re.findall(r"`(\w+)`", cell), before)
    texts = sources("crates/frameshare-tools/src/metrics/*.rs")
    registered = re.findall(r'(?:counters|gauges)\((?:&mut )?registry, "(\w+)"', "".join(texts))
    missing = {f"frameshare_{name}" for name in registered} - {name.removesuffix("_total") for name in found}
    if missing:
        raise SystemExit(f"interface: the table of metrics in docs/tool.md lacks {', '.join(sorted(missing))}")
    return sorted(f"metric {name} {{{labels}}}" for name, labels in found.items())


def environment():
    """Return variables that the sources read and a page names."""
    pages = "".join(page.read_text() for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
    texts = sources("crates/*/src/**/*.rs") + sources("plugins/*/src/**/*.rs")
    read = {name for text in texts if "env::var" in text for name in re.findall(r'"([A-Z][A-Z0-9_]+)"', text)}
    return sorted(f"environment {name}" for name in read if re.search(rf"\b{name}\b", pages))


# ---- The file


def pages():
    """Return the pages of the manual, which others link to."""
    return [f"page {file.relative_to(ROOT)}" for file in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]]


def generate():
    """Return the content of the file, and the reasons for parts that are left out."""
    is_experimental = re.compile("|".join(EXPERIMENTAL)).match
    blocks, skipped = [HEADER], []
    for part in (elements, rust, c, cpp, python, command, metrics, environment, pages):
        try:
            lines = part()
        except Skipped as reason:
            skipped.append(str(reason))
        else:
            marks = ["experimental" if is_experimental(line) else "stable" for line in lines]
            blocks.append("".join(f"{mark} {line}\n" for mark, line in zip(marks, lines)))
    return "\n".join(blocks), skipped


def canonical(value):
    """Return a default of any language in one form: times in ns, sizes in bytes, "none" for a choice of the engine."""
    value = re.sub(r"^(Some|Frames)\((.*)\)$", r"\2", value.strip("'`"))
    if found := re.fullmatch(r"([\d.]+) ?(ms|s|MiB|GiB)", value):
        units = {"ms": 10**6, "s": 10**9, "MiB": 2**20, "GiB": 2**30}
        return str(round(float(found[1]) * units[found[2]]))
    if re.fullmatch(r"0o?[0-7]{3}", value):
        return str(int(value.replace("o", ""), 8))
    if value in ("None", "[]", "-1", "auto", ""):
        return "none"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", value).lower()


def drift(lines):
    """Return options whose default in an interface is not the engine's."""

    def all_of(pattern, text=lines):
        return re.findall(pattern, text, re.MULTILINE)

    engine = {name: canonical(value) for name, value in all_of(r"^option (\S+) = (.*)$")}
    sides = {"framesharesink": "exporter", "framesharesrc": "reader"}
    found = []  # (configuration, option, interface, default)
    for element, name, value in all_of(r"^property (framesharesink|framesharesrc)[.]([\w-]+): \w+ = ([^\s,]*)"):
        found.append((sides[element], name, f"{element}.{name}", value))
    for function, arguments in all_of(r"^python (frameshare[.](?:create|open)\w*) def\((.*)\) ->"):
        for name, type_, value in all_of(r"(\w+): ((?:[^,=\[]|\[[^]]*\])*)=('\w+'|[\w.-]+)", arguments):
            # Python's times are seconds.
            value = f"{value} s" if "float" in type_ and value != "None" else value
            found.append(("exporter" if ".create" in function else "reader", name, f"{function}.{name}", value))
    rows = (ROOT / "docs/limits.md").read_text().split("Fixed:")[0]
    for names, of_source, defaults in all_of(r"^\| (`.*?`)( of `framesharesrc`)? \| (.*?) \|", rows):
        element = "framesharesrc" if of_source else "framesharesink"
        names, defaults = all_of(r"`([\w-]+)`", names), defaults.split(", ")
        # The first options of a row may share a default.
        defaults = defaults[:1] * (len(names) - len(defaults)) + defaults
        for name, value in zip(names, defaults):
            found.append((sides[element], name, f"{element}.{name}", value))
    named = [(f"{side}.{name.replace('-', '_')}", interface, value) for side, name, interface, value in found]
    return [
        f"{interface} is {value} by default, and {option} of the engine is {engine[option]}"
        for option, interface, value in named
        if option in engine and interface not in DEFAULTS and canonical(value) != engine[option]
    ]


def changed_since_changelog():
    """Return stable lines that changed after CHANGELOG.md; none where git does not know."""

    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout

    if not shutil.which("git"):
        return []
    commit, file = git("log", "-1", "--format=%H", "--", "CHANGELOG.md").strip(), str(FILE.relative_to(ROOT))
    has_new_entry = git("diff", "--name-only", "HEAD", "--", "CHANGELOG.md")
    if not commit or has_new_entry or not git("ls-tree", commit, file):
        return []
    return re.findall(r"^[-+]stable .*", git("diff", "--unified=0", commit, "--", file), re.MULTILINE)


def main(arguments):
    if arguments not in (["write"], ["check"]):
        raise SystemExit(__doc__)
    text, skipped = generate()
    for reason in skipped:
        print(f"SKIP interface-rust: {reason}")
    if arguments == ["write"]:
        if skipped:
            raise SystemExit("interface: nothing was written, since the lines of Rust would be lost")
        FILE.write_text(text)
        return
    committed = FILE.read_text()
    if skipped:
        committed = re.sub(r"(^\w+ rust .*\n)+\n", "", committed, flags=re.MULTILINE)
    files = (f"{FILE.relative_to(ROOT)}", "the sources")
    difference = list(difflib.unified_diff(committed.splitlines(), text.splitlines(), *files, n=0, lineterm=""))
    if difference:
        print(*difference, sep="\n")
        print(f"FAIL interface: the file differs from the sources. To write it: {NEEDED}; tools/interface.py write")
        sys.exit(1)
    if differences := drift(re.sub("^(stable|experimental) ", "", text, flags=re.MULTILINE)):
        print(*differences, sep="\n")
        print("FAIL interface: use one default, or give the reason in DEFAULTS")
        sys.exit(1)
    if changed := changed_since_changelog():
        print(*changed, sep="\n")
        print("FAIL interface: these stable lines changed after CHANGELOG.md last did: add an entry there")
        sys.exit(1)
    print("PASS interface")


if __name__ == "__main__":
    main(sys.argv[1:])
